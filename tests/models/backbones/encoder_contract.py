"""
    both, texts = load_backbone(name, frames), load_query_backbone(name, frames)
    assert both.fingerprint == texts.fingerprint, "the text tower alone has another fingerprint"
    rng = np.random.default_rng(0)
    clips = torch.from_numpy(rng.integers(0, 256, (2, frames, *both.spec.shape, 3), dtype=np.uint8))
    features = both.video_features(clips)
    assert (features.shape, features.dtype) == ((2, both.feature_dim), torch.float32)
    videos = both.project_features(features)
    assert videos.shape == (2, both.dim)
    torch.testing.assert_close(videos.norm(dim=-1), torch.ones(2), atol=1e-5, rtol=0)
    assert torch.equal(encode_frames(both, clips)[0], videos), "another pass gives other vectors"

    ids = texts.tokenize(TEXTS)
    assert max(int(row.max()) for row in ids) < texts.vocabulary, "the vocabulary lacks tokens"
    alone, together = texts.encode(ids, alone=True), texts.encode(ids)
    assert alone.shape == (len(TEXTS), both.dim)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(alone, together, atol=_TOLERANCE, err_msg="vectors depend on the other texts")
    side = TowerQueryBackbone(both)
    other = side.encode(side.tokenize(TEXTS), alone=True)
    np.testing.assert_allclose(alone, other, atol=_TOLERANCE, err_msg="the text towers differ")
    assert texts.towers().fingerprint == both.fingerprint, "both towers do not load after the text tower"
    save_file({"wrong": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(BackboneUnavailable, match="are of another model"):
        load_backbone(name, 2)
