"""A file of each caption format, and what it becomes."""

from __future__ import annotations

import json
from typing import Any


def _cues(*cues: tuple[float, float, str]) -> list[dict[str, Any]]:
    return [{"start": start, "end": end, "text": text} for start, end, text in cues]


DENSE = {"duration": 9.5, "timestamps": [[0, 4.5], [8, 4]], "sentences": ["A dog.", " It runs. "]}
DENSE_VIDEO = {"transcript": _cues((0, 4.5, "A dog."), (4, 8, "It runs.")), "metadata": {"duration": 9.5}}
DOG, CAT = {"captions": ["a dog"]}, {"captions": ["a cat", "it sleeps"]}

# Name of the format, content of the table, and the videos by their files.
CASES: dict[str, tuple[str, Any, dict[str, dict[str, Any]]]] = {
    "metadata.jsonl": (
        "videos",
        '{"file_name": "a.mp4", "text": "a dog"}\n{"file_name": "b.mp4", "captions": ["a cat", "it sleeps"]}',
        {"a.mp4": DOG, "b.mp4": CAT},
    ),
    "metadata.csv": (
        "table",
        "file_name,text,fps,split\na.mp4,a dog,25,validation\n",
        {"a.mp4": DOG | {"metadata": {"fps": "25"}, "split": "val"}},
    ),
    "list.json": (
        "videos",
        [{"video": "a.mp4", "caption": "a dog", "split": "Dev"}],
        {"a.mp4": DOG | {"split": "val"}},
    ),
    "one.json": ("videos", {"path": "a.mp4", "caption": "a dog"}, {"a.mp4": DOG}),
    "msrvtt.json": (
        "MSR-VTT",
        {
            "info": {"year": "2016"},
            "videos": [
                {
                    "video_id": "video0",
                    "id": 0,
                    "split": "validate",
                    "category": 9,
                    "start time": 1.5,
                    "url": "x",
                },
                {"video_id": "a", "id": 1, "split": "train"},
                {"video_id": "video7", "id": 2, "split": "test"},
            ],
            "sentences": [
                {"sen_id": 0, "video_id": "video0", "caption": "a cat"},
                {"sen_id": 1, "video_id": "video0", "caption": "it sleeps"},
                {"sen_id": 2, "video_id": "video7", "caption": "not here"},
                {"sen_id": 3, "video_id": "a", "caption": "a dog"},
            ],
        },
        {
            "video0.mp4": CAT | {"split": "val", "metadata": {"category": 9, "start time": 1.5}},
            "a.mp4": DOG | {"split": "train"},
        },
    ),
    "MSRVTT_JSFUSION_test.csv": (
        "table",
        "key,vid_key,video_id,sentence\nret0,msr0,video0,a cat\nret1,msr1,video9,no\n",
        {"video0.mp4": {"captions": ["a cat"], "metadata": {"key": "ret0", "vid_key": "msr0"}}},
    ),
    "vatex.json": (
        "VATEX",
        [
            {"videoID": "id_000010_000020", "enCap": ["a cat", "it sleeps"], "chCap": ["猫"]},
            {"videoID": "no", "enCap": []},
        ],
        {"clips/id_000010_000020.webm": CAT | {"metadata": {"chCap": ["猫"]}}},
    ),
    "captions_train2017.json": (
        "COCO captions",
        {
            "images": [{"id": 7, "file_name": "a.mp4", "height": 480}, {"id": 8, "file_name": "no.mp4"}],
            "annotations": [
                {"image_id": 7, "id": 1, "caption": "a dog"},
                {"image_id": 8, "id": 2, "caption": "no"},
            ],
        },
        {"a.mp4": DOG | {"metadata": {"height": 480}}},
    ),
    "coco_videos.json": (
        "COCO captions",
        {
            "videos": [{"id": "v", "file_name": "a.mp4"}],
            "annotations": [{"video_id": "v", "caption": "a dog"}],
        },
        {"a.mp4": DOG},
    ),
    "activitynet.json": ("ActivityNet Captions", {"a": DENSE, "v_no": DENSE}, {"a.mp4": DENSE_VIDEO}),
    "dense.jsonl": ("dense captions", json.dumps({"video_id": "a"} | DENSE) + "\n", {"a.mp4": DENSE_VIDEO}),
    "youcook.json": (
        "YouCook2",
        {
            "database": {
                "a": {
                    "subset": "validation",
                    "duration": 9.5,
                    "annotations": [{"segment": [0, 4.5], "id": 0, "sentence": "A dog."}],
                }
            }
        },
        {"a.mp4": {"split": "val", "metadata": {"duration": 9.5}, "transcript": _cues((0, 4.5, "A dog."))}},
    ),
    "LSMDC16_annos.csv": (
        "LSMDC",
        '1_Film_00.00.46.763-00.00.50.301\t00.00.46\t00.00.50\t00.00.46\t00.00.50\tSOMEONE says "no | yes\n'
        "1_Film_00.00.51.000-00.00.52.000\t0\t1\t0\t1\tnot here\n",
        {
            "1_Film/1_Film_00.00.46.763-00.00.50.301.avi": {
                "captions": ['SOMEONE says "no | yes'],
                "metadata": {
                    "start_aligned": "00.00.46",
                    "end_aligned": "00.00.50",
                    "start_extracted": "00.00.46",
                    "end_extracted": "00.00.50",
                },
            }
        },
    ),
    "project-1.json": (
        "Label Studio",
        [
            {
                "id": 1,
                "data": {"video": "/data/upload/1/0123abcd-b.mp4", "camera": "north"},
                "annotations": [
                    {
                        "was_cancelled": False,
                        "result": [
                            {
                                "type": "textarea",
                                "from_name": "cap",
                                "value": {"text": ["a cat", "it sleeps"]},
                            },
                            {
                                "type": "textarea",
                                "from_name": "t",
                                "value": {"start": 1, "end": 2, "text": ["purr"]},
                            },
                            {"type": "choices", "from_name": "kind", "value": {"choices": ["animal"]}},
                        ],
                    },
                    {"was_cancelled": True, "result": [{"value": {"text": ["skipped"]}}]},
                ],
            }
        ],
        {
            "b.mp4": CAT
            | {"transcript": _cues((1, 2, "purr")), "metadata": {"camera": "north", "kind": ["animal"]}}
        },
    ),
    "samples.json": (
        "FiftyOne samples",
        {
            "samples": [
                {
                    "filepath": "/export/data/a.mp4",
                    "tags": ["validation", "night"],
                    "metadata": {"frame_rate": 25},
                    "caption": "a dog",
                    "weather": {"_cls": "Classification", "label": "rain", "confidence": 0.5},
                    "events": {"detections": [{"label": "bark", "support": [1, 9]}, {"label": "run"}]},
                    "_rand": 0.5,
                }
            ]
        },
        {
            "a.mp4": DOG
            | {"split": "val", "metadata": {"weather": "rain", "events": ["bark", "run"], "tags": ["night"]}}
        },
    ),
    "labels.json": (
        "FiftyOne labels",
        {
            "classes": ["dog", "cat"],
            "labels": {"a": 0, "b": [{"label": 1, "timestamps": [0, 2]}], "no": "cat"},
        },
        {"a.mp4": {"metadata": {"label": "dog"}}, "b.mp4": {"transcript": _cues((0, 2, "cat"))}},
    ),
}
NAMES = (
    "a.mp4",
    "b.mp4",
    "video0.mp4",
    "clips/id_000010_000020.webm",
    "1_Film/1_Film_00.00.46.763-00.00.50.301.avi",
)


def content_of(content: Any) -> bytes:
    """Return the bytes of a file."""
    return (content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)).encode()
