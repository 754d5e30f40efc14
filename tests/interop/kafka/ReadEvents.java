import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;

/** Reads events, a line of hex each, with Kafka's own serde; prints what it wrote again, and what it read. */
public final class ReadEvents {
    public static void main(String[] arguments) throws Exception {
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            RemoteLogMetadata event = serde.deserialize(HexFormat.of().parseHex(line));
            System.out.println(HexFormat.of().formatHex(serde.serialize(event)) + "\t" + event);
        }
    }
}
