//! The feed-forward sublayer: routed experts, and the shared one beside them.

use super::weights::stack_name;
use super::{DeepSeekV4, Step, Sublayer, product, v4, v4_on};
use crate::ModelError;
use crate::emit::Emit;
use lockstep_plan::format::Format;
use lockstep_plan::v4::{Choice, ExpertDown, ExpertSum, ExpertUp, LimitedSiluMul, Route, V4Op};
use lockstep_plan::{Axis, BufferId, Elem, LaneId};
use lockstep_weights::{Role, V4Part, V4Place, V4Role};

impl DeepSeekV4 {
    pub(super) fn feed_forward(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
    ) -> Result<(), ModelError> {
        let spec = &self.spec;
        let place = V4Place::Layer(layer);
        let at = |what: &str| format!("{place}{what}");
        let entered = self.enter(e, step, layer, Sublayer::FeedForward);
        let row = entered.row;
        let shared = self.shared_expert(e, step, place, row)?;
        let (chosen, weights) = self.route(e, step, layer, row)?;
        let routed = self.routed_experts(e, place, row, chosen)?;
        let out = e.rows_f32(at("ffn.out"), Axis::T, spec.hidden);
        let (per_token, dim) = (spec.experts_per_token, spec.hidden);
        let op = ExpertSum { shared, routed, weights, per_token, dim, out };
        v4(e, at("expert_sum"), V4Op::ExpertSum(op));
        self.leave(e, step, at("ffn_out"), &entered, out);
        Ok(())
    }

    fn shared_expert(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        place: V4Place,
        row: BufferId,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let (d, ffn, lane) = (spec.hidden, spec.ffn, step.lanes.window);
        let role = |part| Role::V4(place, V4Role::Shared(part));
        let parts = vec![
            e.part(role(V4Part::Gate), (ffn, d, 0), None)?,
            e.part(role(V4Part::Up), (ffn, d, ffn), None)?,
        ];
        let x = product(e, lane, &format!("{place}shared_up"), (row, d), parts);
        let out = e.rows_f32(format!("{place}shared_gated.out"), Axis::T, ffn);
        let limit_bits = spec.swiglu_limit.to_bits();
        let op = LimitedSiluMul { x, dim: ffn, limit_bits, out };
        v4_on(e, lane, format!("{place}shared_gated"), V4Op::LimitedSiluMul(op));
        let part = e.part(role(V4Part::Down), (d, ffn, 0), None)?;
        Ok(product(e, lane, &format!("{place}shared_down"), (out, ffn), vec![part]))
    }

    /// Returns the chosen experts and their weights, `[T][experts_per_token]` each.
    fn route(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
        row: BufferId,
    ) -> Result<(BufferId, BufferId), ModelError> {
        let spec = &self.spec;
        let place = V4Place::Layer(layer);
        let role = |r| Role::V4(place, r);
        let (experts, per_token) = (spec.experts, spec.experts_per_token);
        let part = e.part(role(V4Role::Router), (experts, spec.hidden, 0), None)?;
        let name = format!("{place}router");
        let logits = product(e, LaneId::MAIN, &name, (row, spec.hidden), vec![part]);
        let choice = if spec.is_hashed(layer) {
            let bytes = u64::from(spec.vocab) * u64::from(per_token) * 4;
            let table = e.b.weight(role(V4Role::RouterTable).to_string(), bytes, Elem::U32);
            Choice::Table { table, tokens: step.tokens }
        } else {
            Choice::Scored { bias: e.vector(role(V4Role::RouterBias), experts) }
        };
        let bytes = u64::from(per_token) * 4;
        let chosen = e.b.transient(format!("{place}chosen"), Axis::T, bytes, Elem::U32);
        let weights = e.rows_f32(format!("{place}expert_weights"), Axis::T, per_token);
        let scaling_bits = spec.routed_scaling.to_bits();
        let op = Route { logits, choice, experts, per_token, scaling_bits, chosen, weights };
        v4(e, format!("{place}route"), V4Op::Route(op));
        Ok((chosen, weights))
    }

    /// Results of the chosen experts, `[T][experts_per_token][hidden]`.
    fn routed_experts(
        &self,
        e: &mut Emit<'_>,
        place: V4Place,
        row: BufferId,
        chosen: BufferId,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let (d, ffn, per_token, experts) =
            (spec.hidden, spec.ffn, spec.experts_per_token, spec.experts);
        let (gate, format) = self.stack(e, place, V4Part::Gate, (ffn, d))?;
        let (up, up_format) = self.stack(e, place, V4Part::Up, (ffn, d))?;
        debug_assert_eq!(format, up_format, "a stack's format is one for gate and up");
        let h = e.rows_f32(format!("{place}expert_up.out"), Axis::T, per_token * ffn);
        let op = ExpertUp {
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
        v4(e, format!("{place}expert_up"), V4Op::ExpertUp(op));
        let (w, format) = self.stack(e, place, V4Part::Down, (d, ffn))?;
        let out = e.rows_f32(format!("{place}expert_down.out"), Axis::T, per_token * d);
        let op = ExpertDown { x: h, chosen, per_token, experts, w, format, k: ffn, n: d, out };
        v4(e, format!("{place}expert_down"), V4Op::ExpertDown(op));
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
        let bytes = e.backend.matrix_bytes(format, self.spec.experts * n, k)?;
        Ok((e.b.weight(stack_name(place, part), bytes, Elem::Packed(format)), format))
    }
}
