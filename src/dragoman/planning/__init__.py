"""From one's own text to a configuration: inspection, split, measurement of the machine, choice, document."""
