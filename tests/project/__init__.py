"""Tests of the project itself: its layers, its tidiness, its doors and its scripts."""
