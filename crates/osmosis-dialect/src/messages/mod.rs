//! Messages of Anthropic.

mod blocks;
mod reply;
mod request;

pub(super) use self::reply::ReplyWriter;
pub(super) use self::request::to_chat;

/// Where arguments go that are not the JSON object they should be. A tool's input has to be an object
/// in this dialect, and what a model said shall reach the agent, and come back, as it was.
const RAW_ARGUMENTS: &str = "raw_arguments";
