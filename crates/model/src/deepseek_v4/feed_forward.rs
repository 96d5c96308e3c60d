//! The feed-forward sublayer: routed experts, and the shared one beside them.

use super::weights::stack_name;
use super::{DeepSeekV4, Site, Step, Sublayer, product, v4, v4_on};
use crate::ModelError;
use crate::emit::Emit;
use lockstep_plan::format::Format;
use lockstep_plan::v4::{Choice, ExpertDown, ExpertSum, ExpertUp, LimitedSiluMul, Route, V4Op};
use lockstep_plan::{BufferId, Elem, LaneId};
use lockstep_weights::{Role, V4Part, V4Place, V4Role};

impl DeepSeekV4 {
    pub(super) fn feed_forward(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        site: &Site,
    ) -> Result<(), ModelError> {
        let spec = &self.spec;
        let entered = self.enter(e, site, Sublayer::FeedForward);
        let row = entered.row;
        let shared = self.shared_expert(e, step, site, row)?;
        let (chosen, weights) = self.route(e, step, site, row)?;
        let routed = self.routed_experts(e, site, row, chosen)?;
        let axis = site.axis;
        let out = e.rows_f32(site.at("ffn.out"), axis, spec.hidden);
        let (per_token, dim) = (spec.experts_per_token, spec.hidden);
        let op = ExpertSum { axis, shared, routed, weights, per_token, dim, out };
        v4(e, site.at("expert_sum"), V4Op::ExpertSum(op));
        self.leave(e, site, "ffn_out", &entered, out);
        Ok(())
    }

    fn shared_expert(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        site: &Site,
        row: BufferId,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let (d, ffn, lane, axis) = (spec.hidden, spec.ffn, step.lanes.window, site.axis);
        let role = |part| site.role(V4Role::Shared(part));
        let parts = vec![
            e.part(role(V4Part::Gate), (ffn, d, 0), None)?,
            e.part(role(V4Part::Up), (ffn, d, ffn), None)?,
        ];
        let x = product(e, (lane, axis), &site.at("shared_up"), (row, d), parts);
        let out = e.rows_f32(site.at("shared_gated.out"), axis, ffn);
        let limit_bits = spec.swiglu_limit.to_bits();
        let op = LimitedSiluMul { axis, x, dim: ffn, limit_bits, out };
        v4_on(e, lane, site.at("shared_gated"), V4Op::LimitedSiluMul(op));
        let part = e.part(role(V4Part::Down), (d, ffn, 0), None)?;
        Ok(product(e, (lane, axis), &site.at("shared_down"), (out, ffn), vec![part]))
    }

    /// Returns the chosen experts and their weights, `[rows][experts_per_token]` each.
    fn route(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        site: &Site,
        row: BufferId,
    ) -> Result<(BufferId, BufferId), ModelError> {
        let spec = &self.spec;
        let (axis, role) = (site.axis, |r| site.role(r));
        let (experts, per_token) = (spec.experts, spec.experts_per_token);
        let part = e.part(role(V4Role::Router), (experts, spec.hidden, 0), None)?;
        let on = (LaneId::MAIN, axis);
        let logits = product(e, on, &site.at("router"), (row, spec.hidden), vec![part]);
        let hashed = matches!(site.place, V4Place::Layer(n) if spec.is_hashed(n));
        let choice = if hashed {
            let bytes = u64::from(spec.vocab) * u64::from(per_token) * 4;
            let table = e.b.weight(role(V4Role::RouterTable).to_string(), bytes, Elem::U32);
            Choice::Table { table, tokens: step.tokens }
        } else {
            Choice::Scored { bias: e.vector(role(V4Role::RouterBias), experts) }
        };
        let bytes = u64::from(per_token) * 4;
        let chosen = e.b.transient(site.at("chosen"), axis, bytes, Elem::U32);
        let weights = e.rows_f32(site.at("expert_weights"), axis, per_token);
        let scaling_bits = spec.routed_scaling.to_bits();
        let op = Route { axis, logits, choice, experts, per_token, scaling_bits, chosen, weights };
        v4(e, site.at("route"), V4Op::Route(op));
        Ok((chosen, weights))
    }

    /// Results of the chosen experts, `[rows][experts_per_token][hidden]`.
    fn routed_experts(
        &self,
        e: &mut Emit<'_>,
        site: &Site,
        row: BufferId,
        chosen: BufferId,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let (place, axis) = (site.place, site.axis);
        let (d, ffn, per_token, experts) =
            (spec.hidden, spec.ffn, spec.experts_per_token, spec.experts);
        let (gate, format) = self.stack(e, place, V4Part::Gate, (ffn, d))?;
        let (up, up_format) = self.stack(e, place, V4Part::Up, (ffn, d))?;
        debug_assert_eq!(format, up_format, "a stack's format is one for gate and up");
        let h = e.rows_f32(site.at("expert_up.out"), axis, per_token * ffn);
        let op = ExpertUp {
            axis,
            x: row,
            chosen,
            per_token,
            experts,
            gate,
            up,
            format,
            k: d,
            n: ffn,
            limit_bits: spec.swiglu_limit.to_bits(),
            out: h,
        };
        v4(e, site.at("expert_up"), V4Op::ExpertUp(op));
        let (w, format) = self.stack(e, place, V4Part::Down, (d, ffn))?;
        let out = e.rows_f32(site.at("expert_down.out"), axis, per_token * d);
        let op =
            ExpertDown { axis, x: h, chosen, per_token, experts, w, format, k: ffn, n: d, out };
        v4(e, site.at("expert_down"), V4Op::ExpertDown(op));
        Ok(out)
    }

    /// One matrix of every expert, one under the other.
    fn stack(
        &self,
        e: &mut Emit<'_>,
        place: V4Place,
        part: V4Part,
        (n, k): (u32, u32),
    ) -> Result<(BufferId, Format), ModelError> {
        let format = self.formats.get(Role::V4(place, V4Role::Expert(0, part)))?;
        let name = stack_name(place, part);
        if let Some(bound) = e.b.find(&name) {
            return Ok((bound, format));
        }
        let bytes = e.backend.matrix_bytes(format, self.spec.experts * n, k)?;
        Ok((e.b.weight(name, bytes, Elem::Packed(format)), format))
    }
}
