"""`headwater inspect`: describes and checks objects of the buffer, the log and the tier.

Each module takes the bytes of an object, or a partition, and returns an `InspectionReport`, shown
as text or as JSON.

Always holds:

- nothing is written, opened or fenced;
- the verdict is that of Headwater's own reader: an object is reported as good exactly if the rest
  of Headwater can read it.
"""

__all__: list[str] = []
