"""What we make of a transcript. Pure: values in, values out."""
