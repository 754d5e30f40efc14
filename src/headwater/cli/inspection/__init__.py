"""`headwater inspect`: what an object of the buffer, the log or the tier holds, and what is wrong.

Each module takes the bytes of an object, or a partition, and returns an `InspectionReport`, shown
as text or as JSON.

Always holds:

- nothing is written, opened or fenced;
- the verdict is that of the reader that the rest of Headwater uses: an object called good here can
  be read everywhere else, and one called bad is refused there.
"""

__all__: list[str] = []
