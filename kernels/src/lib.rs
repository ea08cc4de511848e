//! Attention that leaves out negligible work, and the other operators of a decoder, behind one Backend trait.
