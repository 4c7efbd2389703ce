"""The measurements behind millisecond bench, one file per subject."""
