//! Advisory locks of a run: two numbers, what it is for and which run.

/// Held by the session of the controller as long as it has the run.
pub(crate) const CONTROLLER: i32 = 0x4f53_4d01;
/// Shared by the transactions of a controller; a takeover takes it alone while it changes the epoch.
pub(crate) const EPOCH: i32 = 0x4f53_4d02;
