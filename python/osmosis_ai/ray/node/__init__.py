"""What is sent to the machines of a cluster. It imports the standard library and Ray alone."""
