//! Commands that we suggest to the user.

pub(crate) use osmosis_run::reports::suggested_command as suggest;
