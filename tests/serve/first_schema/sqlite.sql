CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE api_key (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name VARCHAR(200) NOT NULL,
    role VARCHAR(40) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    created_us BIGINT NOT NULL,
    expires_us BIGINT,
    revoked_us BIGINT,
    CONSTRAINT uq_api_key_hash UNIQUE (hash),
    CONSTRAINT uq_api_key_name UNIQUE (name)
);

CREATE TABLE audit (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    acted_us BIGINT NOT NULL,
    actor VARCHAR(200) NOT NULL,
    action VARCHAR(200) NOT NULL,
    about VARCHAR(200) NOT NULL,
    detail JSON NOT NULL,
    previous VARCHAR(64) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    CONSTRAINT uq_audit_hash UNIQUE (hash)
);

CREATE TABLE heartbeat (
    process VARCHAR(40) NOT NULL,
    pid INTEGER NOT NULL,
    beat_us BIGINT NOT NULL,
    facts JSON NOT NULL,
    CONSTRAINT pk_heartbeat PRIMARY KEY (process)
);

CREATE TABLE sink (
    name VARCHAR(200) NOT NULL,
    added_us BIGINT NOT NULL,
    CONSTRAINT pk_sink PRIMARY KEY (name)
);

CREATE TABLE state_change (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    subject VARCHAR(40) NOT NULL,
    state VARCHAR(40) NOT NULL,
    changed_us BIGINT NOT NULL,
    changed_by VARCHAR(200) NOT NULL,
    reason TEXT NOT NULL
);

CREATE INDEX ix_state_change_changed_us ON state_change (changed_us);

CREATE INDEX ix_state_change_subject_id ON state_change (subject, id);

CREATE TABLE "view" (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    board_key VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    file VARCHAR(80) NOT NULL,
    sha256 VARCHAR(64) NOT NULL,
    size_bytes BIGINT NOT NULL,
    pixels BIGINT NOT NULL,
    received_us BIGINT NOT NULL,
    removed_us BIGINT,
    CONSTRAINT uq_view_board_key_name UNIQUE (board_key, name),
    CONSTRAINT uq_view_file UNIQUE (file)
);

CREATE TABLE recipe (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    content JSON NOT NULL,
    digest VARCHAR(64) NOT NULL,
    created_us BIGINT NOT NULL,
    created_by VARCHAR(200) NOT NULL,
    CONSTRAINT uq_recipe_name_digest UNIQUE (name, digest),
    CONSTRAINT uq_recipe_name_version UNIQUE (name, version)
);

CREATE TABLE activation (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    recipe_id INTEGER NOT NULL,
    state VARCHAR(40) NOT NULL,
    asked_us BIGINT NOT NULL,
    asked_by VARCHAR(200) NOT NULL,
    answered_us BIGINT,
    reason TEXT NOT NULL,
    CONSTRAINT fk_activation_recipe_id FOREIGN KEY(recipe_id) REFERENCES recipe (id)
);

CREATE INDEX ix_activation_recipe_id ON activation (recipe_id);

CREATE TABLE board (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "key" VARCHAR(200) NOT NULL,
    digest VARCHAR(64) NOT NULL,
    recipe_id INTEGER NOT NULL,
    state VARCHAR(40) NOT NULL,
    serial VARCHAR(200) NOT NULL,
    panel VARCHAR(200) NOT NULL,
    side VARCHAR(40) NOT NULL,
    work_order VARCHAR(200) NOT NULL,
    request JSON NOT NULL,
    pass_number INTEGER NOT NULL,
    fed_by VARCHAR(200) NOT NULL,
    accepted_us BIGINT NOT NULL,
    due_us BIGINT,
    started_us BIGINT,
    attempts INTEGER NOT NULL,
    endangered_us BIGINT,
    decided_us BIGINT,
    verified_us BIGINT,
    verdict VARCHAR(40),
    late BOOLEAN NOT NULL,
    components INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    findings BLOB,
    reason TEXT NOT NULL,
    CONSTRAINT fk_board_recipe_id FOREIGN KEY(recipe_id) REFERENCES recipe (id),
    CONSTRAINT uq_board_key UNIQUE ("key")
);

CREATE INDEX ix_board_verdict ON board (verdict);

CREATE INDEX ix_board_decided_us ON board (decided_us);

CREATE INDEX ix_board_recipe_id ON board (recipe_id);

CREATE INDEX ix_board_serial_side ON board (serial, side);

CREATE INDEX ix_board_state_id ON board (state, id);

CREATE TABLE call (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    board_id INTEGER,
    kind VARCHAR(40) NOT NULL,
    refdes VARCHAR(200) NOT NULL,
    component VARCHAR(200) NOT NULL,
    view_id INTEGER,
    place JSON,
    verdict VARCHAR(40) NOT NULL,
    reason VARCHAR(40) NOT NULL,
    detail TEXT NOT NULL,
    expert VARCHAR(200) NOT NULL,
    label VARCHAR(200) NOT NULL,
    score FLOAT,
    late BOOLEAN NOT NULL,
    findings JSON NOT NULL,
    truth VARCHAR(200) NOT NULL,
    opened_us BIGINT NOT NULL,
    revision INTEGER NOT NULL,
    verification_id INTEGER,
    claimed_by VARCHAR(200) NOT NULL,
    claimed_until_us BIGINT NOT NULL,
    CONSTRAINT fk_call_board_id FOREIGN KEY(board_id) REFERENCES board (id),
    CONSTRAINT fk_call_view_id FOREIGN KEY(view_id) REFERENCES "view" (id),
    CONSTRAINT uq_call_board_id_refdes UNIQUE (board_id, refdes)
);

CREATE INDEX ix_call_board_id ON call (board_id);

CREATE INDEX ix_call_component_opened_us ON call (component, opened_us);

CREATE INDEX ix_call_open ON call (verification_id, id);

CREATE INDEX ix_call_opened_us ON call (opened_us);

CREATE INDEX ix_call_view_id ON call (view_id);

CREATE TABLE verification (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    call_id INTEGER NOT NULL,
    supersedes INTEGER,
    outcome VARCHAR(40) NOT NULL,
    label VARCHAR(200) NOT NULL,
    note TEXT NOT NULL,
    verified_us BIGINT NOT NULL,
    verified_by VARCHAR(200) NOT NULL,
    CONSTRAINT fk_verification_call_id FOREIGN KEY(call_id) REFERENCES call (id),
    CONSTRAINT fk_verification_supersedes FOREIGN KEY(supersedes) REFERENCES verification (id),
    CONSTRAINT uq_verification_supersedes UNIQUE (supersedes)
);

CREATE INDEX ix_verification_call_id ON verification (call_id);

CREATE INDEX ix_verification_verified_us ON verification (verified_us);

CREATE TABLE "escape" (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    board_id INTEGER,
    serial VARCHAR(200) NOT NULL,
    refdes VARCHAR(200) NOT NULL,
    component VARCHAR(200) NOT NULL,
    label VARCHAR(200) NOT NULL,
    found_at VARCHAR(200) NOT NULL,
    note TEXT NOT NULL,
    reported_us BIGINT NOT NULL,
    reported_by VARCHAR(200) NOT NULL,
    CONSTRAINT fk_escape_board_id FOREIGN KEY(board_id) REFERENCES board (id)
);

CREATE INDEX ix_escape_board_id ON "escape" (board_id);

CREATE INDEX ix_escape_reported_us ON "escape" (reported_us);

CREATE TABLE fault (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    process VARCHAR(40) NOT NULL,
    kind VARCHAR(40) NOT NULL,
    about VARCHAR(200) NOT NULL,
    message TEXT NOT NULL,
    board_id INTEGER,
    raised_us BIGINT NOT NULL,
    seen_us BIGINT NOT NULL,
    times INTEGER NOT NULL,
    cleared_us BIGINT,
    cleared_by VARCHAR(200) NOT NULL,
    CONSTRAINT fk_fault_board_id FOREIGN KEY(board_id) REFERENCES board (id)
);

CREATE INDEX ix_fault_cleared_us ON fault (cleared_us);

CREATE INDEX ix_fault_raised_us ON fault (raised_us);

CREATE TABLE tally (
    hour_us BIGINT NOT NULL,
    recipe_id INTEGER NOT NULL,
    component VARCHAR(200) NOT NULL,
    expert VARCHAR(200) NOT NULL,
    label VARCHAR(200) NOT NULL,
    findings BIGINT NOT NULL,
    called BIGINT NOT NULL,
    score_sum FLOAT NOT NULL,
    score_square_sum FLOAT NOT NULL,
    CONSTRAINT pk_tally PRIMARY KEY (hour_us, recipe_id, component, expert, label),
    CONSTRAINT fk_tally_recipe_id FOREIGN KEY(recipe_id) REFERENCES recipe (id)
);

CREATE TABLE event (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid VARCHAR(36) NOT NULL,
    kind VARCHAR(40) NOT NULL,
    board_id INTEGER,
    happened_us BIGINT NOT NULL,
    body JSON NOT NULL,
    CONSTRAINT fk_event_board_id FOREIGN KEY(board_id) REFERENCES board (id),
    CONSTRAINT uq_event_uuid UNIQUE (uuid)
);

CREATE INDEX ix_event_board_id ON event (board_id);

CREATE INDEX ix_event_happened_us ON event (happened_us);

CREATE TABLE outbox (
    sink VARCHAR(200) NOT NULL,
    event_id INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    next_try_us BIGINT NOT NULL,
    error TEXT NOT NULL,
    CONSTRAINT pk_outbox PRIMARY KEY (sink, event_id),
    CONSTRAINT fk_outbox_event_id FOREIGN KEY(event_id) REFERENCES event (id),
    CONSTRAINT fk_outbox_sink FOREIGN KEY(sink) REFERENCES sink (name)
);

CREATE TRIGGER verification_no_update BEFORE UPDATE ON "verification" BEGIN SELECT RAISE(ABORT, 'rows of verification are never changed'); END;

CREATE TRIGGER verification_no_delete BEFORE DELETE ON "verification" BEGIN SELECT RAISE(ABORT, 'rows of verification are never changed'); END;

CREATE TRIGGER audit_no_update BEFORE UPDATE ON "audit" BEGIN SELECT RAISE(ABORT, 'rows of audit are never changed'); END;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON "audit" BEGIN SELECT RAISE(ABORT, 'rows of audit are never changed'); END;

INSERT INTO alembic_version (version_num) VALUES ('0001');
