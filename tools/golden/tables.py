"""Tables that need no model: torch's CPU normal noise, and the sigmas of FlowMatchEulerDiscreteScheduler."""
import json
from pathlib import Path

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift, retrieve_timesteps
from safetensors.torch import save_file

from tiny import SCHEDULE

SEEDS = (0, 1, 42, 2**32 + 5, 2**63)
# Below 16 elements torch draws one by one; from 16 on it fills with uniforms and transforms blocks of 16, the last block
# anew when the count is no multiple of 16. 4096 passes the 624-word state of the generator.
COUNTS = (8, 16, 17, 31, 4096)


def write_noise(path: Path) -> None:
    tensors = {}
    for seed in SEEDS:
        for count in COUNTS:
            for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
                generator = torch.Generator("cpu").manual_seed(seed)
                tensors[f"{label}.seed{seed}.n{count}"] = torch.randn(count, generator=generator, dtype=dtype)
    # Two draws from one generator: what a batch of two pictures with a shared generator would use.
    generator = torch.Generator("cpu").manual_seed(42)
    for name, count in (("first", 8), ("second", 31), ("third", 8)):
        tensors[f"f32.seed42.sequence.{name}.n{count}"] = torch.randn(count, generator=generator)
    save_file(tensors, path)


def write_sigmas(path: Path) -> None:
    """Each case is what FluxPipeline does: linspace(1, 1/steps, steps), shifted by mu of the token count or by `shift`."""
    cases = []
    kinds = [("dev", dict(use_dynamic_shifting=True, shift=3.0)), ("schnell", dict(use_dynamic_shifting=False, shift=1.0)),
             ("static-3", dict(use_dynamic_shifting=False, shift=3.0))]
    for kind, settings in kinds:
        for width, height in ((128, 128), (512, 512), (1024, 1024), (1536, 1024), (2048, 2048), (64, 48)):
            for steps in (1, 4, 20, 28, 50):
                if kind != "dev" and (width, height) != (1024, 1024):
                    continue  # a static shift does not see the size
                scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULE, **settings)
                tokens = (width // 16) * (height // 16)
                mu = calculate_shift(tokens, 256, 4096, 0.5, 1.15)
                retrieve_timesteps(scheduler, steps, "cpu", sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
                assert scheduler.sigmas.dtype == scheduler.timesteps.dtype == torch.float32
                # A float32 printed as the shortest float64 that equals it: read it as f64 and cast, no bit is lost.
                cases.append(dict(kind=kind, width=width, height=height, steps=steps, image_tokens=tokens, mu=mu, **settings,
                                  sigmas=scheduler.sigmas.tolist(), timesteps=scheduler.timesteps.tolist()))
    rows = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f"[\n{rows}\n]\n", "utf8")
