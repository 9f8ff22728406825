//! Converts events to messages. Pure.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use highwater_engine::event::ChangeEvent;

use crate::handler::MessageEncoding;

/// Longest text of a message.
/// <https://learn.microsoft.com/azure/storage/queues/scalability-targets>
const TEXT_BYTES_MAX: usize = 64 << 10;

/// An event, and its index in the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) index: usize,
    pub(super) event: &'a ChangeEvent,
}

impl<'a> Row<'a> {
    pub(super) fn of(events: &'a [ChangeEvent]) -> impl Iterator<Item = Self> {
        events.iter().enumerate().map(|(index, event)| Self { index, event })
    }
}

/// A message, and its events.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) text: String,
    pub(super) rows: Vec<Row<'a>>,
}

/// An event that does not fit into a message.
#[derive(Debug)]
pub(super) struct OversizeEvent<'a> {
    event: &'a ChangeEvent,
    bytes: usize,
}

impl fmt::Display for OversizeEvent<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, bytes } = self;
        let key = serde_json::to_string(&event.cursor.key).unwrap_or_default();
        write!(
            formatter,
            "the row {key}, event `{}`, needs a message of {bytes} bytes, but a queue accepts \
             {TEXT_BYTES_MAX}: exclude columns, or use another handler",
            event.id
        )
    }
}

/// Packs events into messages, in order.
#[derive(Debug)]
pub(super) struct Messages<'a> {
    rows: Vec<Row<'a>>,
    /// How many of them are packed.
    packed: usize,
    events_max: usize,
    encoding: MessageEncoding,
}

impl<'a> Messages<'a> {
    /// Creates messages of at most `events_max` events; for 1, a message is the event itself.
    pub(super) fn new(rows: Vec<Row<'a>>, events_max: usize, encoding: MessageEncoding) -> Self {
        Self { rows, packed: 0, events_max, encoding }
    }

    /// Returns the size of `bytes` of JSON in a message.
    fn text_bytes(&self, bytes: usize) -> usize {
        match self.encoding {
            MessageEncoding::Base64 => bytes.div_ceil(3).saturating_mul(4),
            MessageEncoding::None => bytes,
        }
    }

    fn encode(&self, json: String) -> String {
        match self.encoding {
            MessageEncoding::Base64 => BASE64.encode(json),
            MessageEncoding::None => json,
        }
    }

    /// Returns an event's JSON in a form that fits into a message.
    fn json(&self, event: &ChangeEvent) -> String {
        match self.encoding {
            MessageEncoding::Base64 => event.json.to_string(),
            // XML cannot contain these two, and in JSON they only occur in strings.
            MessageEncoding::None => {
                event.json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
            }
        }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, OversizeEvent<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let waiting = self.rows.get(self.packed..).unwrap_or_default();
        let (first, others) = waiting.split_first()?;
        let is_array = self.events_max > 1;
        let (mut json, mut rows) = (self.json(first.event), vec![*first]);
        if is_array {
            json.insert(0, '[');
        }
        let end = usize::from(is_array);
        if self.text_bytes(json.len() + end) > TEXT_BYTES_MAX {
            let bytes = self.text_bytes(json.len() + end);
            let event = first.event;
            // Nothing follows a rejected row.
            self.packed = self.rows.len();
            return Some(Err(OversizeEvent { event, bytes }));
        }
        for row in others.iter().take(self.events_max - 1) {
            let next = self.json(row.event);
            if self.text_bytes(json.len() + 1 + next.len() + end) > TEXT_BYTES_MAX {
                break;
            }
            json.push(',');
            json.push_str(&next);
            rows.push(*row);
        }
        if is_array {
            json.push(']');
        }
        self.packed += rows.len();
        Some(Ok(Message { text: self.encode(json), rows }))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use highwater_engine::handler::testing::Sample;
    use serde_json::Value as Json;

    use super::*;

    /// Returns events whose JSON has the given lengths.
    fn events(lengths: &[usize]) -> Vec<ChangeEvent> {
        let mut events = Sample::new(u64::try_from(lengths.len()).unwrap()).events;
        for (event, length) in events.iter_mut().zip(lengths) {
            event.json = format!("\"{}\"", "x".repeat(length - 2)).into();
        }
        events
    }

    fn messages(events: &[ChangeEvent], max: usize, encoding: MessageEncoding) -> Messages<'_> {
        Messages::new(Row::of(events).collect(), max, encoding)
    }

    fn sizes(events: &[ChangeEvent], max: usize, encoding: MessageEncoding) -> Vec<usize> {
        messages(events, max, encoding).map(|message| message.map_or(0, |m| m.rows.len())).collect()
    }

    #[test]
    fn a_message_is_one_event_or_an_array_of_them() {
        let events = Sample::new(3).events;
        let texts = |max, encoding| -> Vec<String> {
            messages(&events, max, encoding).map(|message| message.unwrap().text).collect()
        };
        let json: Vec<String> = events.iter().map(|event| event.json.to_string()).collect();
        assert_eq!(texts(1, MessageEncoding::None), json);
        let array = |events: &[String]| format!("[{}]", events.join(","));
        assert_eq!(texts(2, MessageEncoding::None), [array(&json[..2]), array(&json[2..])]);
        let base64: Vec<String> = json.iter().map(|json| BASE64.encode(json)).collect();
        assert_eq!(texts(1, MessageEncoding::Base64), base64);
        assert_eq!(texts(9, MessageEncoding::Base64), [BASE64.encode(array(&json))]);
    }

    #[test]
    fn messages_are_filled_to_the_last_byte() {
        use MessageEncoding::{Base64, None};
        for (lengths, max, encoding, expected) in [
            (&[65_536][..], 1, None, &[1][..]),
            (&[65_537], 1, None, &[0]),
            (&[49_152], 1, Base64, &[1]),
            (&[49_153], 1, Base64, &[0]),
            (&[65_534], 2, None, &[1]),
            (&[65_535], 2, None, &[0]),
            // Two brackets and a comma.
            (&[32_766, 32_767, 9], 9, None, &[2, 1]),
            (&[32_767, 32_767, 9], 9, None, &[1, 2]),
            (&[24_574, 24_575, 9], 9, Base64, &[2, 1]),
            (&[24_575, 24_575, 9], 9, Base64, &[1, 2]),
            (&[9; 5], 2, Base64, &[2, 2, 1]),
            // Nothing follows a rejected row.
            (&[9, 65_537, 9], 1, None, &[1, 0]),
        ] {
            assert_eq!(sizes(&events(lengths), max, encoding), expected, "{lengths:?} {max}");
        }
    }

    #[test]
    fn a_row_that_is_too_large_is_reported_with_its_size() {
        let events = events(&[60_000]);
        let oversize = messages(&events, 1, MessageEncoding::Base64).next().unwrap();
        let text = oversize.unwrap_err().to_string().replace(events[0].id.as_str(), "<id>");
        expect![[r#"the row {"id":1}, event `<id>`, needs a message of 80000 bytes, but a queue accepts 65536: exclude columns, or use another handler"#]].assert_eq(&text);
    }

    #[test]
    fn characters_that_xml_cannot_contain_are_json_escapes() {
        let mut events = Sample::new(1).events;
        events[0].json = "\"\u{fffe}\u{ffff}\u{fffd}\"".to_owned().into();
        let message = messages(&events, 1, MessageEncoding::None).next().unwrap().unwrap();
        assert!(!message.text.contains(['\u{fffe}', '\u{ffff}']));
        let (before, after): (Json, Json) = (
            serde_json::from_str(&events[0].json).unwrap(),
            serde_json::from_str(&message.text).unwrap(),
        );
        assert_eq!(before, after);
    }
}
