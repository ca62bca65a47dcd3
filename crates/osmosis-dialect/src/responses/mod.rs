//! Responses of `OpenAI`, without its state: every call carries its whole conversation.

mod input;
mod item;
mod reply;
mod request;

pub(super) use self::reply::ReplyWriter;
pub(super) use self::request::to_chat;
