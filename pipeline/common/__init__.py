"""What every part may use: files, progress bars, command lines, settings, plot style. No torch."""
