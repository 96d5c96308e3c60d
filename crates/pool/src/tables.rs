//! The tables that a step reads, as plain slices into the device's input buffers.

use crate::PoolError;
use lockstep_flow::BucketKey;

/// The index tables of one step, to be filled by [`crate::Pool::lease`], which writes every entry.
///
/// T, S and R are the bucket's; every table has the bucket's capacity as its length and stride,
/// whatever is live. Live rows come first, in the order they were given; then padding:
/// - a padded token has position 0, a write slot inside page 0 and belongs to a padded sequence
///   row (one each, the last one takes the rest; where no row is padded: to the last row, whose
///   table it only reads);
/// - a padded sequence row has slot 0 and a block table of zeros;
/// - a padded logit row reads the last token row and stores to slot 0.
///
/// Several padded tokens can have the same write slot in page 0.
#[derive(Debug)]
pub struct StepTables<'a> {
    /// `[S][pages_per_seq_max]`: page of each run of a sequence; 0 beyond its end.
    pub block_tables: &'a mut [u32],
    /// `[T]`: where a token's KV goes, `page * PAGE_TOKENS + offset`.
    pub write_slots: &'a mut [u32],
    /// `[T]`: position in the sequence.
    pub positions: &'a mut [u32],
    /// `[T]`: sequence row of a token.
    pub seq_of_token: &'a mut [u32],
    /// `[S]`: sequence slot.
    pub slots: &'a mut [u32],
    /// `[R]`: token row whose hidden state is projected to logits.
    pub logit_tokens: &'a mut [u32],
    /// `[R]`: slot whose `last_token` the row's sample becomes; 0 for a row that only reports.
    pub logit_slots: &'a mut [u32],
    /// `[S]`, optional: first token row of a sequence row.
    pub first_tokens: Option<&'a mut [u32]>,
    /// `[S]`, optional: token rows of a sequence row.
    pub token_counts: Option<&'a mut [u32]>,
    /// `[S]`, optional: positions of the sequence once the step is done.
    pub kv_lens: Option<&'a mut [u32]>,
}

impl StepTables<'_> {
    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        let always = [
            &self.block_tables,
            &self.write_slots,
            &self.positions,
            &self.seq_of_token,
            &self.slots,
            &self.logit_tokens,
            &self.logit_slots,
        ];
        let optional = [&self.first_tokens, &self.token_counts, &self.kv_lens];
        let entries = always.iter().map(|t| t.len()).sum::<usize>()
            + optional.iter().filter_map(|t| t.as_ref()).map(|t| t.len()).sum::<usize>();
        entries as u64 * 4
    }

    /// Checks every length against the bucket's capacity.
    pub fn check(&self, bucket: BucketKey, pages_per_seq_max: u32) -> Result<(), PoolError> {
        let (t, s, r) = (bucket.tokens as usize, bucket.seqs as usize, bucket.logit_rows as usize);
        let len = |table, slice: &[u32], expected| {
            if slice.len() == expected {
                Ok(())
            } else {
                Err(PoolError::TableShape { table, expected, found: slice.len() })
            }
        };
        len("block_tables", self.block_tables, s * pages_per_seq_max as usize)?;
        len("write_slots", self.write_slots, t)?;
        len("positions", self.positions, t)?;
        len("seq_of_token", self.seq_of_token, t)?;
        len("slots", self.slots, s)?;
        len("logit_tokens", self.logit_tokens, r)?;
        len("logit_slots", self.logit_slots, r)?;
        for (table, slice) in [
            ("first_tokens", &self.first_tokens),
            ("token_counts", &self.token_counts),
            ("kv_lens", &self.kv_lens),
        ] {
            if let Some(slice) = slice {
                len(table, slice, s)?;
            }
        }
        Ok(())
    }
}

/// Where the tables go: written, or compared with what was written before.
pub(crate) trait TableSink {
    /// Entry `index` of `table` is `value`.
    fn put(&mut self, table: Table, index: usize, value: u32) -> Result<(), PoolError>;

    /// Entries of `table` from `index` on are `values`.
    fn copy(&mut self, table: Table, index: usize, values: &[u32]) -> Result<(), PoolError>;

    /// Entries `from..to` of `table` are zero.
    fn zero(&mut self, table: Table, from: usize, to: usize) -> Result<(), PoolError>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    Blocks,
    WriteSlots,
    Positions,
    SeqOfToken,
    Slots,
    LogitTokens,
    LogitSlots,
    FirstTokens,
    TokenCounts,
    KvLens,
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Table::Blocks => "block_tables",
            Table::WriteSlots => "write_slots",
            Table::Positions => "positions",
            Table::SeqOfToken => "seq_of_token",
            Table::Slots => "slots",
            Table::LogitTokens => "logit_tokens",
            Table::LogitSlots => "logit_slots",
            Table::FirstTokens => "first_tokens",
            Table::TokenCounts => "token_counts",
            Table::KvLens => "kv_lens",
        }
    }
}

impl<'a> StepTables<'a> {
    fn slice(&mut self, table: Table) -> Option<&mut [u32]> {
        match table {
            Table::Blocks => Some(self.block_tables),
            Table::WriteSlots => Some(self.write_slots),
            Table::Positions => Some(self.positions),
            Table::SeqOfToken => Some(self.seq_of_token),
            Table::Slots => Some(self.slots),
            Table::LogitTokens => Some(self.logit_tokens),
            Table::LogitSlots => Some(self.logit_slots),
            Table::FirstTokens => self.first_tokens.as_deref_mut(),
            Table::TokenCounts => self.token_counts.as_deref_mut(),
            Table::KvLens => self.kv_lens.as_deref_mut(),
        }
    }
}

/// Writes.
pub(crate) struct Write<'a, 'b>(pub &'a mut StepTables<'b>);

impl TableSink for Write<'_, '_> {
    fn put(&mut self, table: Table, index: usize, value: u32) -> Result<(), PoolError> {
        if let Some(slice) = self.0.slice(table) {
            slice[index] = value;
        }
        Ok(())
    }

    fn copy(&mut self, table: Table, index: usize, values: &[u32]) -> Result<(), PoolError> {
        if let Some(slice) = self.0.slice(table) {
            slice[index..index + values.len()].copy_from_slice(values);
        }
        Ok(())
    }

    fn zero(&mut self, table: Table, from: usize, to: usize) -> Result<(), PoolError> {
        if let Some(slice) = self.0.slice(table) {
            slice[from..to].fill(0);
        }
        Ok(())
    }
}

/// Compares: the audit's view of tables that a step was given.
pub(crate) struct Compare<'a, 'b>(pub &'a mut StepTables<'b>);

impl TableSink for Compare<'_, '_> {
    fn put(&mut self, table: Table, index: usize, value: u32) -> Result<(), PoolError> {
        match self.0.slice(table).map(|s| s[index]) {
            Some(found) if found != value => {
                Err(PoolError::TableEntry { table: table.name(), index, expected: value, found })
            }
            _ => Ok(()),
        }
    }

    fn copy(&mut self, table: Table, index: usize, values: &[u32]) -> Result<(), PoolError> {
        (index..).zip(values).try_for_each(|(i, &value)| self.put(table, i, value))
    }

    fn zero(&mut self, table: Table, from: usize, to: usize) -> Result<(), PoolError> {
        let found = self.0.slice(table).and_then(|s| {
            s[from..to].iter().position(|&x| x != 0).map(|i| (from + i, s[from + i]))
        });
        match found {
            Some((index, found)) => {
                Err(PoolError::TableEntry { table: table.name(), index, expected: 0, found })
            }
            None => Ok(()),
        }
    }
}
