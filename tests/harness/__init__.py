"""Tests of integration/: bench figures, checker, kill points, kill matrix, leak detection."""
