//! Text messages of the WebSockets: terminal and tunnel.

use crate::error::ErrorInfo;
use crate::exec::PtySize;
use crate::fields::{Fields, Issues};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the server says as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum SocketEvent {
    /// First of all: it can be used.
    Ready {
        /// A terminal's process.
        #[serde(rename = "processId", skip_serializing_if = "Option::is_none")]
        process_id: Option<String>,
    },
    /// It cannot be used, or no more; a close follows.
    Error {
        /// Why.
        error: ErrorInfo,
    },
    /// A terminal's process has ended; a close follows.
    Exit {
        /// As in a command's answer.
        #[serde(rename = "exitCode")]
        exit_code: Option<i32>,
    },
}

/// Reads what a terminal's client says as text: `{"type":"resize","cols":80,"rows":24}`.
///
/// # Errors
/// Every issue with it.
pub fn parse_resize(text: &[u8]) -> Result<PtySize, Issues> {
    let mut fields = Fields::open(text)?;
    if !fields.has("type") {
        fields.issue("type", "is required");
    }
    fields.word("type", &[("resize", ())]);
    let size = PtySize::read(&mut fields);
    fields.finish(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_spelled_as_the_contract_says() {
        let text = |event: &SocketEvent| serde_json::to_string(event).expect("JSON");
        assert_eq!(text(&SocketEvent::Ready { process_id: None }), r#"{"type":"ready"}"#);
        let ready = SocketEvent::Ready { process_id: Some("p1".into()) };
        assert_eq!(text(&ready), r#"{"type":"ready","processId":"p1"}"#);
        assert_eq!(text(&SocketEvent::Exit { exit_code: Some(3) }), r#"{"type":"exit","exitCode":3}"#);
    }

    #[test]
    fn a_size_is_read_or_refused() {
        let size = parse_resize(br#"{"type":"resize","cols":120,"rows":40}"#);
        assert_eq!(size, Ok(PtySize { cols: 120, rows: 40 }));
        for bad in ["", "[]", r#"{"type":"resize"}"#, r#"{"type":"x","cols":1,"rows":1}"#, r#"{"cols":0,"rows":1}"#] {
            assert!(parse_resize(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
