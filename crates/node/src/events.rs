//! Events, as clients see them. They are written by the catalog, with the states they tell.

use crate::error::NodeError;
use crate::node::{Inner, Node};
use branchbox_api::{Event, EventData, EventSandbox, EventSnapshot, Page};
use branchbox_catalog::{Catalog, EventFilter, EventRecord};
use branchbox_model::Timestamp;

/// How long events are kept.
const KEPT_SECONDS: i64 = 14 * 86_400;
/// The newest events that are kept, however young the others are.
const KEPT_MAX: u32 = 100_000;
/// In front of an event's number.
const PREFIX: &str = "evt_";

impl Node {
    /// One page of events, newest first; `cursor` is the id of an event, and older ones follow.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn events(&self, filter: EventFilter) -> Result<Page<Event>, NodeError> {
        let limit = filter.limit;
        let mut records = self.inner.catalog.events(&EventFilter { limit: limit + 1, ..filter }).await?;
        let more = records.len() > limit as usize;
        records.truncate(limit as usize);
        let data: Vec<Event> = records.into_iter().map(event).collect();
        let next_cursor = data.last().filter(|_| more).map(|event| event.id.clone());
        Ok(Page { data, next_cursor })
    }

    /// The number in an event's id.
    #[must_use]
    pub fn event_number(id: &str) -> Option<i64> {
        id.strip_prefix(PREFIX)?.parse().ok().filter(|number| *number > 0)
    }
}

fn event(record: EventRecord) -> Event {
    let (id, detail) = (record.resource.clone(), record.detail);
    let data = match detail.source {
        None => EventData::Sandbox(EventSandbox {
            id,
            name: detail.name,
            labels: detail.labels,
            state: record.state,
            previous_state: detail.previous,
            stop_reason: detail.reason,
        }),
        source => EventData::Snapshot(EventSnapshot {
            id,
            name: detail.name,
            labels: detail.labels,
            source_sandbox_id: source,
            state: record.state,
            previous_state: detail.previous,
            error: detail.error,
        }),
    };
    Event {
        id: format!("{PREFIX}{}", record.seq),
        kind: record.kind,
        created_at: record.at,
        resource_id: record.resource,
        data,
    }
}

/// Keeps the list bounded.
pub(crate) async fn forget_old(inner: &Inner, now: Timestamp) -> Result<(), NodeError> {
    inner.catalog.forget_events(now.plus_seconds(-KEPT_SECONDS), KEPT_MAX).await?;
    Ok(())
}
