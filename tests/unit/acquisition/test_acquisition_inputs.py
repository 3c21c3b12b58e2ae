"""The plug-ins' arguments: bad ones, input constructors, Ax."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
import warnings

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import (
    SingleTaskGP,
)
from places import COMMON
from plugins import BETA, KINDS, PHI, TAU, at, data, make, mock

import cbandit as cb
from cbandit.acquisition import (
    OptimisticFeasible,
    PathwisePrimalDual,
    PrimalDual,
    RectifiedPenalty,
)


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"multiplier": [1.0, 1.0, 1.0]}, r"multiplier must .* m = 2.*got \(3,\)"),
            ({"multiplier": [1.0]}, r"multiplier must .*got \(1,\)"),
            ({"multiplier": [1.0, -1.0]}, "multiplier must not be negative; got -1"),
            ({"multiplier": math.nan}, "multiplier must be finite"),
            ({"multiplier": "two"}, "multiplier must be a number, array or tensor"),
            ({"beta": -1.0}, "beta and cost_beta must not be negative"),
            ({"beta": math.inf}, "beta and cost_beta must be finite"),
            ({"cost_beta": [1.0, 2.0, 3.0]}, r"cost_beta must .*got \(3,\)"),
            ({"thresholds": [0.0]}, "thresholds must"),
            ({"thresholds": math.nan}, "thresholds must be finite"),
            ({"clip": 1.0}, r"clip must be a pair \(B, G\)"),
            ({"clip": (1.0, 0.0)}, "clip must be above 0"),
            ({"clip": (1.0, [1.0] * 3)}, "clip G must"),
            ({"smooth": 0.0}, "smooth must be above 0"),
            ({"smooth": [1.0, 1.0]}, r"smooth must be a number or have shape \(3,\)"),
            ({"noise": -1.0}, "noise must not be negative"),
            ({"noise": [1.0]}, "noise must be a number or have shape"),
            ({"X_pending": torch.zeros(2)}, r"X_pending must have shape \(p, d\)"),
            ({"X_pending": torch.full((1, 2), torch.nan)}, "X_pending must be finite"),
            ({"model": "gp"}, "model must be a BoTorch model; got str"),
            ({"outputs": [(0, 1.0)]}, "model must have 1 \\+ m outputs"),
            ({"outputs": [(0, 1.0), (3, 1.0)]}, "outputs must name outputs 0 .. 2"),
            ({"outputs": [(0, 1.0), (1, 0.0)]}, "factors other than 0"),
            ({"outputs": [0, 1]}, "outputs must be a list of pairs"),
        ],
    )
    @pytest.mark.parametrize("plug_in", [PrimalDual, RectifiedPenalty])
    def test_is_named(self, model, plug_in, given, message):
        arguments = {"model": model, "beta": 1.0, "multiplier": [1.0, 1.0], **given}
        with pytest.raises(cb.CBanditError, match=message):
            plug_in(**arguments)

    def test_a_model_without_costs(self):
        x, y = data()
        single = SingleTaskGP(x, y[:, :1])
        for make_score in (
            lambda: PrimalDual(single, 1.0, 1.0),
            lambda: OptimisticFeasible(single, 1.0),
            lambda: PathwisePrimalDual(single, 1.0, 1.0, seed=0),
        ):
            with pytest.raises(
                cb.CBanditError, match=r"model must have 1 \+ m outputs"
            ):
                make_score()

    def test_a_model_with_fewer_outputs_than_multipliers(self):
        x, y = data()
        with pytest.raises(cb.CBanditError, match="a reward and 1 costs; got \\(2,\\)"):
            PrimalDual(SingleTaskGP(x, y[:, :2]), 1.0, [1.0, 1.0])

    def test_floor(self, model):
        with pytest.raises(
            cb.CBanditError, match="floor cannot be had from a MockModel"
        ):
            OptimisticFeasible(mock([[[1.0, 3.0]]], [[[4.0, 0.25]]]), 1.0)
        with pytest.raises(cb.CBanditError, match="floor must be finite"):
            OptimisticFeasible(model, 1.0, floor=-math.inf)

    def test_seed(self, model):
        for seed in (None, 1.5, True):
            with pytest.raises(cb.CBanditError, match="seed must be an int"):
                PathwisePrimalDual(model, 1.0, PHI, seed=seed)

    @pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
    @pytest.mark.filterwarnings("ignore:Data .* is not")
    def test_points_of_double_digits(self):
        x, y = data()
        narrow = SingleTaskGP(x.float(), y.float(), outcome_transform=None)
        one = PrimalDual(narrow, 1.0, [1.0] * (y.shape[-1] - 1))
        for built in (
            lambda: one,
            lambda: OptimisticFeasible(narrow, 1.0),
            lambda: PathwisePrimalDual(narrow, 1.0, [1.0] * (y.shape[-1] - 1), seed=0),
        ):
            with pytest.raises(cb.CBanditError, match="X must be float32, as the"):
                built()(x[:1].double().unsqueeze(0))
        with pytest.raises(cb.CBanditError, match="X_pending must be float32"):
            one.set_X_pending(x[:1].double())
        assert one(x[:1].float().unsqueeze(0)).dtype == torch.float32
        # the other way round nothing is lost
        wide = SingleTaskGP(x.double(), y.double(), outcome_transform=None)
        wide = PrimalDual(wide, 1.0, [1.0] * (y.shape[-1] - 1))
        assert wide(x[:1].float().unsqueeze(0)).dtype == torch.float64

    def test_numbers_for_each_point(self, model):
        two = torch.ones(2, len(PHI))
        for more in (
            {"beta": [1.0, 2.0]},
            {"beta": [1.0, 2.0, 3.0]},
            {"beta": []},
            {"cost_beta": two},
            {"multiplier": two},
            {"thresholds": two},
            {"clip": ([1.0, 2.0], 1.0)},
            {"thresholds": torch.zeros(1, 1, len(PHI))},
            {"beta": [[1.0]]},
        ):
            with pytest.raises(cb.CBanditError, match=r"the model's batch shape \(\)"):
                PrimalDual(model, **({"beta": 1.0, "multiplier": PHI} | more))

    def test_a_model_without_paths(self):
        with pytest.raises(cb.CBanditError, match="paths of; got KroneckerMultiTask"):
            PathwisePrimalDual(make("kronecker"), 1.0, PHI, seed=0)

    def test_x_without_a_batch(self, model):
        with pytest.raises(cb.CBanditError, match=r"n, d\) with d = 2.*got \(2,\)"):
            PrimalDual(model, 1.0, PHI)(torch.zeros(2).double())


class TestInputConstructors:
    def test_by_class(self, kind, model):
        plain = {"beta": BETA, "thresholds": TAU, "X_pending": at(1)}
        if kind != "feasible":
            plain["multiplier"] = PHI
        if kind == "pathwise":
            plain["seed"] = 3
        cls = type(KINDS[kind](model))
        make_inputs = get_acqf_input_constructor(cls)
        # what Ax passes besides is allowed, and not needed
        inputs = make_inputs(
            model=model, training_data=None, bounds=None, X_baseline=None, **plain
        )
        score = cls(**inputs)
        assert torch.equal(score(at(4, 1)), cls(model, **plain)(at(4, 1)))
        with pytest.raises(TypeError, match="Unexpected keyword argument `betta`"):
            make_inputs(model=model, betta=1.0)

    def test_objective_and_constraints_of_an_optimisation(self, model):
        weights = torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64)
        # y_0 >= 0.2 and y_2 <= 0.7
        limits = (
            torch.tensor([[-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double(),
            torch.tensor([[-0.2], [0.7]]).double(),
        )
        inputs = get_acqf_input_constructor(PrimalDual)(
            model=model,
            beta=2.0,
            multiplier=PHI,
            posterior_transform=ScalarizedPosteriorTransform(weights),
            constraints_tuple=limits,
        )
        x = at(5, 1)
        seen = model.posterior(x)
        mean, std = seen.mean[:, 0], seen.variance[:, 0].sqrt()
        f = -mean[:, 1] + 2 * std[:, 1]
        first = -mean[:, 0] - 2 * std[:, 0] + 0.2
        second = mean[:, 2] - 2 * std[:, 2] - 0.7
        expected = f - PHI[0] * first - PHI[1] * second
        torch.testing.assert_close(PrimalDual(**inputs)(x), expected)

    def test_what_cannot_be_told_apart(self, model):
        make_inputs = get_acqf_input_constructor(PrimalDual)
        one = torch.eye(3, dtype=torch.float64)
        plain = {"model": model, "beta": 1.0, "multiplier": 1.0}
        limits = (one[1:2], torch.zeros(1, 1))
        with pytest.raises(cb.CBanditError, match="posterior_transform must say"):
            make_inputs(**plain, constraints_tuple=limits)
        plain["posterior_transform"] = ScalarizedPosteriorTransform(one[0])
        with pytest.raises(cb.CBanditError, match="thresholds come with"):
            make_inputs(**plain, constraints_tuple=limits, thresholds=1.0)
        with pytest.raises(cb.CBanditError, match="must each be on one output"):
            make_inputs(**plain, constraints_tuple=(one[1:2] + one[2:], limits[1]))

    def test_the_module_may_be_loaded_again(self):
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                "import sys, importlib, cbandit as cb\n"
                "assert 'botorch' not in sys.modules\n"
                "module = cb.acquisition\n"
                "assert 'botorch' in sys.modules\n"
                "importlib.reload(module)\n"
                "from cbandit import acquisition\n"
                "assert acquisition is module\n"
                "assert 'acquisition' in cb.__all__\n",
            ],
            capture_output=True,
            text=True,
            cwd=COMMON,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr

    def test_other_names_are_still_missing(self):
        assert importlib.import_module("cbandit.acquisition") is cb.acquisition
        with pytest.raises(AttributeError, match="no attribute 'aquisition'"):
            _ = cb.aquisition


@pytest.mark.slow
class TestAx:
    def test_by_name(self):
        pytest.importorskip("ax")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.dual_loop()

    def dual_loop(self):
        from ax.adapter.registry import Generators
        from ax.api.client import Client
        from ax.api.configs import RangeParameterConfig
        from ax.generation_strategy.generation_node import GenerationNode
        from ax.generation_strategy.generation_strategy import GenerationStrategy
        from ax.generation_strategy.generator_spec import GeneratorSpec
        from ax.generation_strategy.transition_criterion import MinTrials

        options = {"beta": 2.0, "multiplier": [0.0]}
        ckb = GeneratorSpec(
            Generators.BOTORCH_MODULAR,
            generator_kwargs={
                "botorch_acqf_class": PrimalDual,
                "botorch_acqf_options": options,
                "transforms": [],
            },
        )
        sobol = GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 0})
        start = GenerationNode(
            name="sobol",
            generator_specs=[sobol],
            transition_criteria=[MinTrials(threshold=4, transition_to="ckb")],
        )
        client = Client(random_seed=0)
        client.configure_experiment(
            parameters=[
                RangeParameterConfig(name="x", parameter_type="float", bounds=(0, 1))
            ]
        )
        # outputs come in the order of their names: neither first nor maximised
        client.configure_optimization(
            objective="-z_loss", outcome_constraints=["a <= 0.3"]
        )
        client.set_generation_strategy(
            GenerationStrategy(
                nodes=[start, GenerationNode(name="ckb", generator_specs=[ckb])]
            )
        )
        phi, seen = torch.zeros(1, dtype=torch.float64), []
        for t in range(10):
            ((number, arm),) = client.get_next_trials(max_trials=1).items()
            x = torch.tensor([[arm["x"]]], dtype=torch.float64)
            if t >= 4:
                adapter = client._generation_strategy.adapter
                assert adapter.outcomes == ["a", "z_loss"]
                # the loss is minimised, the cost's limit subtracted
                score = PrimalDual(
                    adapter.generator.surrogate.model,
                    **options,
                    thresholds=0.3,
                    outputs=[(1, -1.0), (0, 1.0)],
                )
                _, g = score.estimates(x)
                seen.append((arm["x"], score(x).item(), phi.item()))
                axis = torch.linspace(0, 1, 101).double().view(-1, 1, 1)
                assert score(x).item() >= score(axis).max() - 1e-4
                phi = cb.multipliers.projected(phi, g.detach().flatten(), step=0.5)
                options["multiplier"] = phi
            x = x.item()
            client.complete_trial(number, raw_data={"a": x, "z_loss": (x - 0.6) ** 2})
        assert len({multiplier for _, _, multiplier in seen}) > 1
        assert abs(seen[-1][0] - 0.3) < 0.1, seen
