//! The token pool: pages, page groups, prefix index, leases, audit.
