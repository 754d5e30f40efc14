"""Tests of headwater.buffer.consumer."""
