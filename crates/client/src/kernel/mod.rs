//! Bringing the kernel's caches down: what it must drop for a recall ([`Plan`]), and what although none asks for it.

mod plan;
mod unasked;

pub(crate) use plan::Plan;
