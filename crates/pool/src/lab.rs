//! Books falsified on purpose, for drills. Absent without the feature `lab`.

use crate::pool::Pool;
use crate::{PageState, PoolError};
use lockstep_flow::{PageId, SlotId};

/// One way to falsify the books.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BookFault {
    /// A page is taken for free, whoever holds it.
    Freed {
        /// Which.
        page: PageId,
    },
    /// An entry of a sequence's block table names another page.
    Entry {
        /// Whose table.
        slot: SlotId,
        /// Which entry.
        index: u32,
        /// What it names instead.
        page: PageId,
    },
}

impl Pool {
    /// Falsifies the books.
    ///
    /// # Errors
    /// A page or an entry that the pool does not have.
    pub fn break_books(&mut self, fault: BookFault) -> Result<(), PoolError> {
        let pages = self.config.pages;
        let page = match fault {
            BookFault::Freed { page } | BookFault::Entry { page, .. } => page,
        };
        if page.0 >= pages {
            let (what, found, max) = ("a page to falsify", page.0, pages - 1);
            return Err(PoolError::Config { what, found, min: 0, max });
        }
        match fault {
            BookFault::Freed { page } => self.states.force(page, PageState::Free),
            BookFault::Entry { slot, index, page } => {
                let stride = self.config.pages_per_seq_max;
                let at = slot.index() * stride as usize + index as usize;
                if index >= stride || at >= self.block_tables.len() {
                    let (what, max) = ("an entry to falsify", stride - 1);
                    return Err(PoolError::Config { what, found: index, min: 0, max });
                }
                self.block_tables[at] = page.0;
            }
        }
        Ok(())
    }
}
