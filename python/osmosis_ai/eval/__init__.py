"""What graders measure with."""
