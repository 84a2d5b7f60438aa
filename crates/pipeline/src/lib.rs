//! Outboard: pipeline text to checked pairs to the two ordered halves
