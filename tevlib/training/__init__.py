"""Objectives, rollouts and the loop that trains a drafter."""
