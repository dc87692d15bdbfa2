//! Snapshots in stores: what is got is what was put, from any place in a chain, on stores that fail, after kills, and
//! never something else.

mod chains;
mod encrypted;
mod hostile;
mod reading;
mod resumed;
mod retained;
mod world;
