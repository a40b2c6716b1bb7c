"""What a set of pictures is measured by: functions of arrays and tensors with known answers."""
