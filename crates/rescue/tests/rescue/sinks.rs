//! A directory and a tar stream hold what the kernel shows; hostile names stay inside.
