"""What the service promises about speed, measured over HTTP beside what others offer at equal work."""
