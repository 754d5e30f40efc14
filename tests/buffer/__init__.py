"""Tests of the ingestion buffer."""
