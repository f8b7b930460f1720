//! The messages between node, keeper and guest, and how they are framed.
//!
//! All three talk over `SOCK_SEQPACKET` unix sockets: one packet is one message, encoded with postcard. Packets are
//! bounded by [`MESSAGE_BYTES_MAX`]; what may be larger travels as a sealed memory file beside the packet. Everything that
//! comes out of a guest is hostile: decoding is bounded and never panics, and no length in a message is believed.
//!
//! Deliberately not here: any behaviour. The keeper, the guest and the node each decide what to do with a message.

mod frame;
pub mod guest;
pub mod keeper;

pub use frame::{
    FrameError, LARGE_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, PASSED_FDS_MAX, Packet, decode, encode, encode_attached,
    memory_file, read_memory_file, recv_packet, send_packet,
};

/// Spoken by this build; a peer of another version is refused with both numbers.
pub const PROTOCOL_VERSION: u32 = 1;
