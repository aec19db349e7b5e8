"""RLPrompt: the tokens of a prompt chosen by reinforcement learning (Deng et al., EMNLP 2022).

A policy says one token after another: a network with one hidden layer between the last hidden state of a frozen language model and its vocabulary head.
In each step it says 16 prompts of five tokens, every one of which is put after 16 training texts, and earns the gap between the probability of
the right label word and that of the likeliest wrong one, times 200 where it is positive and 180 where it isn't. Rewards are turned into z-scores among the prompts of a
step, stretched by five, and the policy learns by soft Q-learning from a single reward at the end: the mean of the losses with targets one step and many steps ahead, each against a
copy of the policy that follows slowly.

The policy reads its own tokens with the model itself, a masked one with a mask behind them. Those passes are no example's; they are charged to
one called `policy`. Settings as published, but for the policy's model, which was distilgpt2: 12,000 steps (the paper stopped at 1,000), Adam at 5e-5, the 256 likeliest tokens are drawn from.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pbsdk.backend import MaskedQuery, Part, digest
from pbsdk.queries.examples import Example
from pbsdk.reproduce.rivals import Access, Contest, Passes
from pbsdk_rivals.box import Row, WhiteBox
from pbsdk_rivals.prompted import Worded, label_tokens
from pbsdk_rivals.training import Stepped, batches_of_epoch

__all__ = ["RlPrompt", "soft_q_loss"]

POLICY = digest("policy")
WRONG, RIGHT = 180.0, 200.0
"""What a gap of one earns, where the wrong class is ahead and where the right one is."""
STRETCH = 5.0
FOLLOWS = 1e-3
"""Which part of the way the copy of the policy goes in a step."""
BIAS = -10.0
"""What is added to the policy's logits, so that they begin where the values of rewards are."""


@dataclass(frozen=True)
class RlPrompt(Worded, Stepped):
    """A discrete prompt by reinforcement learning."""

    name = "rlprompt"
    title = "RLPrompt"
    access = Access.STATES

    max_steps: int = 12000
    prompt_tokens: int = 5
    prompts: int = 16
    """How many prompts are said in a step."""
    batch_size: int = 16
    learning_rate: float = 5e-5
    hidden: int = 2048
    top: int = 256

    def steps(self, contest: Contest) -> int:
        """Return how many steps it takes."""
        del contest
        return self.max_steps

    def batch(self, contest: Contest, number: int) -> list[int]:
        """Return the places of the texts of a step."""
        per_epoch = -(-len(contest.train.examples) // self.batch_size)
        epoch, at = divmod(number, per_epoch)
        return batches_of_epoch(len(contest.train.examples), self.batch_size, contest.seed, epoch)[at]

    def step_passes(self, contest: Contest, number: int) -> Passes:
        """Return a pass for each prompt and text, and one for each prompt as the policy says it."""
        examples = [contest.train.examples[place] for place in self.batch(contest, number)]
        own = Passes(Counter({POLICY: self.prompts * self.prompt_tokens}), Counter())
        return Passes.of(examples, self.prompts) + own

    def check_passes(self, contest: Contest) -> Passes:
        """Return the passes of a test, before which the policy says its best prompt."""
        return super().check_passes(contest) + Passes(Counter({POLICY: self.prompt_tokens}), Counter())

    def learner(self, contest: Contest) -> Policy:
        """Return the learner."""
        return Policy(self, contest, WhiteBox(contest.backend, contest.meter, room=self.prompt_tokens))

    def parameters(self, contest: Contest) -> int:
        """Return the policy's size."""
        width = WhiteBox(contest.backend, contest.meter).width
        return 2 * width * self.hidden + self.hidden + width


def soft_q_loss(logits: Tensor, followed: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    """Return the loss of soft Q-learning where the only reward comes at the end.

    Args:
        logits: the policy's (B, T, V).
        followed: those of the copy that follows.
        actions: the tokens that were said (B, T).
        rewards: what they earned (B,).
    """
    said = logits.gather(-1, actions.unsqueeze(-1)).squeeze(-1)  # (B, T)
    advantage = said - logits.logsumexp(dim=-1)
    values = followed.logsumexp(dim=-1)  # (B, T)
    ends = torch.cat([values[:, 1:], rewards.unsqueeze(1)], dim=1)
    one_step = (advantage - (ends - values)) ** 2
    rest = advantage.flip(1).cumsum(dim=1).flip(1)  # what is still to come, this token included
    many_steps = (rest - (rewards.unsqueeze(1) - values)) ** 2
    return ((one_step + many_steps) / 2).sum(dim=1).mean()


class Policy:
    """The policy, and the copy that follows it."""

    def __init__(self, rival: RlPrompt, contest: Contest, box: WhiteBox) -> None:
        self._rival, self._contest, self._box = rival, contest, box
        self._words = label_tokens(contest, contest.backend.vocabulary)
        self._labels = torch.as_tensor(contest.train.labels)
        width = box.width
        self._network = nn.Sequential(nn.Linear(width, rival.hidden), nn.ReLU(), nn.Linear(rival.hidden, width))
        for layer in self._network:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, gain=0.0001)
                nn.init.constant_(layer.bias, -0.0001)
        self._network.to(box.model.device)
        self._follower = copy.deepcopy(self._network)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=rival.learning_rate)
        special = set(box.tokenizer.all_special_ids)
        vectors = box.model.get_output_embeddings().weight.detach().float()  # (V, H)
        self._vocabulary = torch.tensor([token for token in range(len(box.tokenizer)) if token not in special])
        self._vectors = vectors[self._vocabulary.to(vectors.device)]

    def _states(self, said: Tensor) -> Tensor:
        """Return the model's last hidden states (B, H) after the tokens that were said (B, t)."""
        tokenizer = self._box.tokenizer
        start = [t for t in (tokenizer.bos_token_id, tokenizer.eos_token_id) if t is not None][:1] or [0]
        tail = [] if self._box.causal else [tokenizer.mask_token_id]
        rows = [Row(POLICY, (*start, *ids, *tail), len(start) + len(ids) + len(tail) - 1) for ids in said.tolist()]
        return self._box.each(rows, lambda batch: self._box.logits(batch, states=True)).float().clone()

    def _logits(self, network: nn.Module, states: Tensor) -> Tensor:
        """Return a network's logits (..., V)."""
        found: Tensor = network(states) @ self._vectors.T + BIAS
        return found

    def _say(self, prompts: int, *, draw: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens of prompts (B, T), their places in the vocabulary, and the states (B, T, H) before each."""
        said = torch.zeros(prompts, 0, dtype=torch.long)
        actions, states = [], []
        for _ in range(self._rival.prompt_tokens):
            state = self._states(said)
            with torch.no_grad():
                logits = self._logits(self._network, state)
                likeliest, where = logits.topk(min(self._rival.top, logits.shape[-1]))
                shares = likeliest.softmax(dim=-1)
                choice = torch.multinomial(shares, 1).squeeze(1) if draw else shares.argmax(dim=-1)
            action = where.gather(1, choice.unsqueeze(1)).cpu()
            actions.append(action)
            states.append(state)
            said = torch.cat([said, self._vocabulary[action]], dim=1)
        return said, torch.cat(actions, dim=1), torch.stack(states, dim=1)

    def _row(self, example: Example, tokens: Sequence[int]) -> Row:
        """Return an example with a prompt of tokens after it, and a mask if the model has one."""
        box = self._box
        parts = [part for text in example.texts for part in (Part("input", text), Part("prompt", " "))]
        row = box.row(MaskedQuery((*parts, Part("mask")), example.id, self._rival.title))
        at = row.at + 1 if box.causal else row.at
        return Row(row.example, (*row.ids[:at], *tokens, *row.ids[at:]), row.at + len(tokens))

    def lengths(self, examples: Sequence[Example]) -> list[Row]:
        """Return rows as long as those with any prompt."""
        return [self._row(example, [0] * self._rival.prompt_tokens) for example in examples]

    def _probabilities(self, examples: Sequence[Example], tokens: Sequence[int]) -> Tensor:
        """Return the log-probabilities (N, C) of the label words."""
        rows = [self._row(example, tokens) for example in examples]
        logits = self._box.each(rows, lambda batch: self._box.logits(batch)[:, self._words])
        return logits.float().cpu().log_softmax(dim=-1)

    def step(self, number: int) -> None:
        """Say prompts, see what they earn, and learn."""
        rival, contest = self._rival, self._contest
        places = rival.batch(contest, number)
        examples, labels = [contest.train.examples[place] for place in places], self._labels[places]
        said, actions, states = self._say(rival.prompts, draw=True)
        rewards = torch.stack([self._earned(self._probabilities(examples, ids).exp(), labels) for ids in said.tolist()])
        scaled = STRETCH * (rewards - rewards.mean()) / (rewards.std(unbiased=False) + 1e-4)
        device = states.device
        with torch.no_grad():
            for slow, fast in zip(self._follower.parameters(), self._network.parameters(), strict=True):
                slow.lerp_(fast, FOLLOWS)
            followed = self._logits(self._follower, states)
        loss = soft_q_loss(self._logits(self._network, states), followed, actions.to(device), scaled.to(device))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # through the policy alone: the model's states are constants
        self._optimizer.step()

    @staticmethod
    def _earned(probabilities: Tensor, labels: Tensor) -> Tensor:
        """Return a prompt's mean reward."""
        right = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
        others = probabilities.scatter(1, labels.unsqueeze(1), -1.0).amax(dim=1)
        gap = right - others
        return torch.where(gap > 0, RIGHT * gap, WRONG * gap).mean()

    def scores(self, examples: Sequence[Example]) -> Tensor:
        """Return the log-probabilities (N, C) under the policy's likeliest prompt."""
        said, _, _ = self._say(1, draw=False)
        return self._probabilities(examples, said[0].tolist())

    def state(self) -> dict[str, Any]:
        """Return the networks and the optimizer's memory."""
        networks = {"network": self._network.state_dict(), "follower": self._follower.state_dict()}
        return {**networks, "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        self._network.load_state_dict(state["network"])
        self._follower.load_state_dict(state["follower"])
        self._optimizer.load_state_dict(state["optimizer"])
