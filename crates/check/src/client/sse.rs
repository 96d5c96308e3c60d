//! Server-sent events, as the HTML standard reads them, in pieces of any size.

/// Bytes of one event, at most.
pub const EVENT_BYTES_MAX: usize = 16 << 20;

/// An event is larger than [`EVENT_BYTES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventTooLarge;

/// One event: its name (empty where it has none) and its data, lines joined with a newline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event<'a> {
    /// The `event` field.
    pub name: &'a [u8],
    /// The `data` fields.
    pub data: &'a [u8],
}

/// A reader that is given bytes as they come and calls back for each whole event.
#[derive(Default, Debug)]
pub struct SseReader {
    /// The line that has begun.
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// A byte order mark may stand before the first line only.
    has_begun: bool,
}

impl SseReader {
    /// Reads `bytes`; `take` gets each event that they complete.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(Event<'_>),
    ) -> Result<(), EventTooLarge> {
        while !bytes.is_empty() {
            if core::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(at) = bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) else {
                self.grow(bytes.len())?;
                self.line.extend_from_slice(bytes);
                return Ok(());
            };
            self.grow(at)?;
            self.after_cr = bytes[at] == b'\r';
            if self.line.is_empty() {
                self.end_line(&bytes[..at], &mut take);
            } else {
                self.line.extend_from_slice(&bytes[..at]);
                let line = core::mem::take(&mut self.line);
                self.end_line(&line, &mut take);
                self.line = line;
                self.line.clear();
            }
            bytes = &bytes[at + 1..];
        }
        Ok(())
    }

    /// The data of an event whose closing blank line never came, if it has any.
    pub fn unfinished(&mut self) -> Option<Vec<u8>> {
        let line = core::mem::take(&mut self.line);
        if !line.is_empty() {
            self.end_line(&line, &mut |_| ());
        }
        core::mem::take(&mut self.has_data).then(|| core::mem::take(&mut self.data))
    }

    fn grow(&self, by: usize) -> Result<(), EventTooLarge> {
        let held = self.line.len() + self.data.len() + self.name.len();
        if held + by > EVENT_BYTES_MAX { Err(EventTooLarge) } else { Ok(()) }
    }

    fn end_line(&mut self, mut line: &[u8], take: &mut impl FnMut(Event<'_>)) {
        if !core::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            if self.has_data {
                take(Event { name: &self.name, data: &self.data });
            }
            self.has_data = false;
            self.data.clear();
            self.name.clear();
            return;
        }
        let colon = line.iter().position(|&b| b == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or(&[]);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // A comment (no field name), id, retry, or a field of the future.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (mut reader, mut events) = (SseReader::default(), Vec::new());
        for piece in pieces {
            reader.push(piece, |e| events.push((e.name.to_vec(), e.data.to_vec()))).unwrap();
        }
        events
    }

    fn data(text: &[u8]) -> Vec<String> {
        let text_of = |(_, d): (_, Vec<u8>)| String::from_utf8(d).unwrap();
        read(&[text]).into_iter().map(text_of).collect()
    }

    #[test]
    fn the_standards_examples() {
        assert_eq!(data(b"data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
        assert_eq!(
            data(b": stream\n\ndata: one\nid: 1\n\ndata:two\nid\n\ndata:  three\n"),
            ["one", "two"]
        );
        assert_eq!(data(b"data\n\ndata\ndata\n\ndata:"), ["", "\n"]);
        assert_eq!(data(b"\xef\xbb\xbfdata: a\r\n\r\ndata: b\r\rdata: c\n\n"), ["a", "b", "c"]);
    }

    #[test]
    fn names_belong_to_their_event_alone() {
        let events = read(&[b"event: error\ndata: x\n\ndata: y\n\n"]);
        assert_eq!(events, [(b"error".to_vec(), b"x".to_vec()), (vec![], b"y".to_vec())]);
    }

    #[test]
    fn what_never_closed_is_told_apart() {
        let mut reader = SseReader::default();
        reader.push(b"data: a\n\ndata: [DO", |_| ()).unwrap();
        reader.push(b"NE]", |_| ()).unwrap();
        assert_eq!(reader.unfinished().as_deref(), Some(&b"[DONE]"[..]));
        assert_eq!(reader.unfinished(), None);
    }

    #[test]
    fn an_endless_line_ends_in_an_error() {
        let mut reader = SseReader::default();
        let block = vec![b'x'; 1 << 20];
        let mut pushed = (0..32).map(|_| reader.push(&block, |_| ()));
        assert_eq!(pushed.position(|p| p.is_err()), Some(EVENT_BYTES_MAX >> 20));
    }

    /// The same reading written the slow, obvious way, over the whole text at once.
    fn plain(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut unix = Vec::new();
        for (at, &b) in text.iter().enumerate() {
            match b {
                b'\n' if at > 0 && text[at - 1] == b'\r' => {}
                b'\r' => unix.push(b'\n'),
                _ => unix.push(b),
            }
        }
        let mut lines: Vec<&[u8]> = unix.split(|&b| b == b'\n').collect();
        lines.pop();
        let (mut events, mut name, mut data) = (Vec::new(), Vec::new(), None::<Vec<u8>>);
        for line in lines {
            if line.is_empty() {
                let name = core::mem::take(&mut name);
                events.extend(data.take().map(|d| (name, d)));
                continue;
            }
            let mut halves = line.splitn(2, |&b| b == b':');
            let (field, value) = (halves.next().unwrap(), halves.next().unwrap_or(b""));
            let value = value.strip_prefix(b" ").unwrap_or(value).to_vec();
            match (field, &mut data) {
                (b"event", _) => name = value,
                (b"data", None) => data = Some(value),
                (b"data", Some(d)) => {
                    d.push(b'\n');
                    d.extend(value);
                }
                _ => {}
            }
        }
        events
    }

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(b"data: ".to_vec()),
            Just(b"data:{\"x\":1}".to_vec()),
            Just(b"event: e".to_vec()),
            Just(b": ping".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\n\n".to_vec()),
            Just(b"\xef\xbb\xbf".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ]
    }

    proptest! {
        #[test]
        fn splits_change_nothing(
            pieces in proptest::collection::vec(piece(), 0..40),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        ) {
            let text = pieces.concat();
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let split: Vec<&[u8]> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            let want = plain(&text);
            prop_assert_eq!(&read(&split), &want);
            prop_assert_eq!(&read(&bytes), &want);
        }
    }
}
