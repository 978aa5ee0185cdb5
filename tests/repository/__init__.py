"""Tests of the tree itself: walls, tidiness, words, and the examples on its pages."""
