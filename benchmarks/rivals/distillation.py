"""Distillation: a frozen teacher's similarities are soft targets for the trained model (LwF, VR-LwF, ZSCL).

From the second trained task on, the teacher is a copy of the model from before the task. A method chooses both models'
inputs and the similarities to compare.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair

_TASKS = "tasks"


class DistillationConfig(FinetuneConfig):
    """Settings of every method with a teacher."""

    distillation: float = Field(default=1.0, ge=0, le=1000)  # weight of the distillation loss
    temperature: float = Field(default=2.0, gt=0, le=100)  # T; ctvr-ffa-tame, section 4.4


class DistillationMethod(Finetune):
    """Fine-tuning of both towers with a distillation loss; without a teacher, there is none."""

    config_class: ClassVar[type[DistillationConfig]] = DistillationConfig
    config: DistillationConfig

    def __init__(self, backbone: Backbone, config: DistillationConfig) -> None:
        super().__init__(backbone, config)
        self.teacher: Backbone | None = None

    @abstractmethod
    def teacher_loss(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """Compute the distillation loss of a batch, whose vectors ``[B, dim]`` are by the trained model."""

    def create_teacher(self) -> Backbone | None:
        """Create the teacher for a task that starts; None for no distillation."""
        return self.frozen_copy() if self.trained_tasks else None

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self.teacher = self.create_teacher() if trained else None

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        queries, videos = self.embed(frames, texts)
        loss = self.contrastive_loss(queries, videos)
        if self.teacher is None:
            return loss
        distilled = self.teacher_loss(self.teacher, frames, texts, queries=queries, videos=videos)
        return loss + self.config.distillation * distilled

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.teacher = None

    def frozen_copy(self) -> Backbone:
        """Copy the trained model, frozen."""
        return self.model.clone().requires_grad_(False)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), _TASKS: torch.tensor(self.trained_tasks)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict({name: tensor for name, tensor in tensors.items() if name != _TASKS})
        self.trained_tasks = int(tensors[_TASKS])


def distillation_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Compute −T² Σ_j p̄_ij log p_ij, averaged over rows i, for softened logits ``[n, m]`` of teacher (p̄) and student.

    The factor T² compensates the gradient scale of the temperature (Hinton et al. 2015, "Distilling the knowledge in a
    neural network", section 2).
    """
    softened = (targets / temperature).softmax(dim=-1)
    return temperature**2 * F.cross_entropy(logits / temperature, softened)


def similarity_distillation_loss(
    current: tuple[Tensor, Tensor], previous: tuple[Tensor, Tensor], scale: float, temperature: float
) -> Tensor:
    """Compute the distillation loss of the similarities within a batch, averaged over both retrieval directions."""
    logits, targets = scale * current[0] @ current[1].T, scale * previous[0] @ previous[1].T
    to_video = distillation_loss(logits, targets, temperature)
    to_text = distillation_loss(logits.T, targets.T, temperature)
    return (to_video + to_text) / 2


def random_sentences(backbone: Backbone, count: int, words: int) -> Tensor:
    """Draw token IDs ``[count, words + 2]``: random tokens between start-of-text and end-of-text."""
    start, end = backbone.tokenize([""])[0].tolist()
    ids = torch.randint(backbone.vocabulary - 2, (count, words))
    for special in sorted((start, end)):  # skip both special tokens' IDs
        ids += ids >= special
    return torch.cat([torch.full((count, 1), start), ids, torch.full((count, 1), end)], dim=1)


class Lwf(DistillationMethod):
    """LwF: learning without forgetting (Li and Hoiem 2017), for retrieval.

    The model from before the task encodes the new task's batches; its text-to-video and video-to-text similarities
    within a batch are soft targets (LwF, equations 2 and 3). They replace a classifier's scores for old classes. No old
    video is needed.

    Differences from the papers: there are no heads, and so no warm-up phase for a new head. The distillation loss has
    the factor T², which LwF's lacks (:func:`distillation_loss`). For this baseline, bmu-moco aligns "representations"
    of the old and the current model without a formula, and ctvr-ffa-tame mentions only a distillation loss with T = 2.
    Both descriptions fit distributions and vectors; this implementation compares distributions, as LwF does.
    """

    name = "lwf"

    def teacher_loss(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """Average the loss over both retrieval directions."""
        with torch.no_grad():
            previous = self.embed(frames, texts, teacher)
        scale, temperature = self.config.logit_scale, self.config.temperature
        return similarity_distillation_loss((queries, videos), previous, scale, temperature)


class SentenceConfig(DistillationConfig):
    """Settings of the methods that compare videos with random sentences."""

    sentences: int = Field(default=1000, ge=2, le=100_000)  # random sentences per step
    words: int = Field(default=10, ge=1, le=62)  # random tokens per sentence


class SentenceMethod(DistillationMethod):
    """Distillation of the similarities between a batch's videos and sentences of random tokens."""

    config_class: ClassVar[type[SentenceConfig]] = SentenceConfig
    config: SentenceConfig

    @abstractmethod
    def sentence_loss(self, videos: Tensor, texts: Tensor, old_videos: Tensor, old_texts: Tensor) -> Tensor:
        """Compute the loss from vectors of videos ``[B, dim]`` and sentences ``[n, dim]`` by both models."""

    def teacher_loss(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        ids = random_sentences(self.model, self.config.sentences, self.config.words)
        sentences = encode_texts(self.model, ids)[0]
        with torch.no_grad():
            old_sentences = encode_texts(teacher, ids)[0]
            old_videos = encode_frames(teacher, frames)[0]
        return self.sentence_loss(videos, sentences, old_videos, old_sentences)


class VrLwf(SentenceMethod):
    """VR-LwF: LwF with vocabulary replay (Ding et al. 2022, "Don't stop learning: towards continual learning for the
    CLIP model").

    A new task's batches contain few texts, all from its own domain. Both models therefore also encode sentences of
    random tokens, drawn in every step, as a sample of all possible queries. The distribution of the batch's videos over
    these sentences is distilled from the teacher. The knowledge to preserve includes CLIP's, so the first task has a
    teacher, too: the pre-trained model.

    Differences from the paper: videos replace images. Number and length of the sentences follow a published
    reimplementation (ZSCL's comparison with VR-LwF), which draws the sentences once per task.
    """

    name = "vr_lwf"

    def create_teacher(self) -> Backbone:
        """Copy the model from before the task, also for the first task."""
        return self.frozen_copy()

    def sentence_loss(self, videos: Tensor, texts: Tensor, old_videos: Tensor, old_texts: Tensor) -> Tensor:
        """Compute the distillation loss from videos to sentences."""
        scale, temperature = self.config.logit_scale, self.config.temperature
        return distillation_loss(scale * videos @ texts.T, scale * old_videos @ old_texts.T, temperature)


_ENSEMBLE, _STEPS = "ensemble.", "steps"


class ZsclConfig(SentenceConfig):
    """Settings of ZSCL."""

    # I, steps between two updates of the weight ensemble
    ensemble_interval: int = Field(default=100, ge=1, le=100_000)


class Zscl(SentenceMethod):
    """ZSCL: zero-shot continual learning (Zheng et al. 2023, "Preventing zero-shot transfer degradation in continual
    learning of vision-language models").

    In feature space, the pre-trained CLIP is every task's teacher on reference data: the distributions of reference
    images over reference texts, and of texts over images, are distilled. Each tower is compared with the teacher's
    other tower, which is fixed. In weight space, every few steps the weights join a running mean, which starts with the
    weights from before the task and becomes the task's result.

    Differences from the paper: there is no reference data set (the paper uses images from ImageNet and texts from
    Conceptual Captions). The videos in the task's batches are the reference images, and sentences of random tokens,
    drawn in every step, are the reference texts, an option in the published code. The images are therefore only from
    the new domain, and the texts are not natural language. The published code compares images with texts in both
    directions, but only with the image tower's gradients; here the second direction trains the text tower. The last
    weights always join the mean, so a task with fewer steps than the interval is learned as well. Label smoothing,
    which is for classifiers, and the quadratic pull to the weights before the task, which the published settings add,
    are left out.
    """

    name = "zscl"
    config_class = ZsclConfig
    config: ZsclConfig

    def __init__(self, backbone: Backbone, config: ZsclConfig) -> None:
        super().__init__(backbone, config)
        self.ensemble: dict[str, Tensor] = {}  # running mean of the weights by name; empty between tasks
        self._steps = 0  # in the current task

    def create_teacher(self) -> Backbone:
        """Take the pre-trained model, for every task."""
        return self.backbone

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Start the ensemble with the weights from before the task."""
        super().begin_task(task_id, name, trained=trained)
        self._steps = 0
        self.ensemble = {
            name: parameter.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def sentence_loss(self, videos: Tensor, texts: Tensor, old_videos: Tensor, old_texts: Tensor) -> Tensor:
        """Add the loss from videos to sentences (image tower) and that from sentences to videos (text tower)."""
        scale, temperature = self.config.logit_scale, self.config.temperature
        targets = scale * old_videos @ old_texts.T
        image_loss = distillation_loss(scale * videos @ old_texts.T, targets, temperature)
        text_loss = distillation_loss(scale * texts @ old_videos.T, targets.T, temperature)
        return image_loss + text_loss

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % self.config.ensemble_interval == 0:
            self._update_ensemble(self._steps // self.config.ensemble_interval)

    @torch.no_grad()
    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Replace the weights with the ensemble."""
        interval = self.config.ensemble_interval
        if self._steps % interval:
            self._update_ensemble(self._steps // interval + 1)
        weights = dict(self.model.named_parameters())
        for name, mean in self.ensemble.items():
            weights[name].copy_(mean)
        self.ensemble, self._steps = {}, 0
        super().end_task(pairs)

    def state_dict(self) -> dict[str, Tensor]:
        ensemble = {_ENSEMBLE + name: mean for name, mean in self.ensemble.items()}
        return {**super().state_dict(), **ensemble, _STEPS: torch.tensor(self._steps)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        ensemble = {name: tensor for name, tensor in tensors.items() if name.startswith((_ENSEMBLE, _STEPS))}
        super().load_state_dict({name: tensor for name, tensor in tensors.items() if name not in ensemble})
        self._steps = int(ensemble.pop(_STEPS))
        device = self.model.device
        self.ensemble = {
            name.removeprefix(_ENSEMBLE): mean.to(device, copy=True) for name, mean in ensemble.items()
        }

    @torch.no_grad()
    def _update_ensemble(self, members: int) -> None:
        """Set θ̂ ← θ / (t + 1) + t θ̂ / (t + 1), where t = ``members`` includes the current weights."""
        weights = dict(self.model.named_parameters())
        trained: list[Tensor] = [weights[name] for name in self.ensemble]
        torch._foreach_lerp_(list(self.ensemble.values()), trained, 1 / (members + 1))
