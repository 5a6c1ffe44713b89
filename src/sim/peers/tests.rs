//! Rules on states made by hand.
