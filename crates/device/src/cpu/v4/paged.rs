//! Rows of a sequence in pages: one for each position, or one for each run of positions.

use super::code::RowCodec;
use lockstep_flow::limits::PAGE_TOKENS;

const PAGE: usize = PAGE_TOKENS as usize;

/// Rows in pages. A row of `ratio` positions lies in the page of its last one; pages of a
/// ratio above a page's tokens have room for one row each.
#[derive(Clone, Copy, Debug)]
pub struct PagedRows {
    /// First page.
    pub pages: *mut u8,
    /// What a row is.
    pub codec: RowCodec,
    /// Positions of a row.
    pub ratio: usize,
}

/// The block tables of a step.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// `[rows]`
    pub positions: *const u32,
    /// `[rows]`: the row's sequence.
    pub token_seq: *const u32,
    /// Rows of page ids.
    pub block_table: *const u32,
    /// Entries from one sequence's row of the table to the next: its capacity.
    pub stride: usize,
}

/// `n / ratio`: rows are asked for one by one, and most ratios need no division.
#[inline(always)]
const fn whole(n: usize, ratio: usize) -> usize {
    if ratio.is_power_of_two() { n >> ratio.trailing_zeros() } else { n / ratio }
}

impl PagedRows {
    /// Rows of a page.
    pub const fn per_page(ratio: usize) -> usize {
        if ratio < PAGE { whole(PAGE, ratio) } else { 1 }
    }

    /// Bytes of a page.
    pub const fn page_bytes(&self) -> usize {
        Self::per_page(self.ratio) * self.codec.row_bytes()
    }

    /// The row whose last position has this write slot.
    #[inline(always)]
    pub fn of_slot(&self, slot: usize) -> *mut u8 {
        let (page, offset) = (slot / PAGE, slot % PAGE);
        let within = if self.ratio < PAGE { whole(offset, self.ratio) } else { 0 };
        self.pages.wrapping_add(page * self.page_bytes() + within * self.codec.row_bytes())
    }

    /// Row `i` of the sequence with this row of the block table.
    ///
    /// # Safety
    /// `table` is readable up to the page of the row's last position.
    #[inline(always)]
    pub unsafe fn at(&self, table: *const u32, i: usize) -> *const u8 {
        let last = (i + 1) * self.ratio - 1;
        // SAFETY: the caller's contract.
        let page = unsafe { *table.add(last / PAGE) } as usize;
        self.of_slot(page * PAGE + last % PAGE)
    }
}

impl Tables {
    /// Position of a row, and its sequence's row of the block table.
    ///
    /// # Safety
    /// The row is live.
    #[inline(always)]
    pub unsafe fn of(&self, row: usize) -> (usize, *const u32) {
        // SAFETY: the caller's contract.
        unsafe {
            let position = *self.positions.add(row) as usize;
            let seq = *self.token_seq.add(row) as usize;
            (position, self.block_table.add(seq * self.stride))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_plan::RowCode;

    #[test]
    fn a_row_lies_in_the_page_of_its_last_position() {
        let rows = |ratio| PagedRows {
            pages: core::ptr::null_mut(),
            codec: RowCodec { code: RowCode::F32, dim: 1 },
            ratio,
        };
        let at = |ratio: usize, table: &[u32], i: usize| {
            // SAFETY: the table has an entry for each row asked for.
            let row = unsafe { rows(ratio).at(table.as_ptr(), i) };
            row as usize / 4
        };
        let table = [7, 3, 9, 5];
        assert_eq!(at(1, &table, 0), 7 * 32);
        assert_eq!(at(1, &table, 33), 3 * 32 + 1);
        assert_eq!((at(4, &table, 7), at(4, &table, 8)), (7 * 8 + 7, 3 * 8));
        assert_eq!(at(128, &table, 0), 5);
    }
}
