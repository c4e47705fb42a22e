-- Whether a host that a person allowed may be reached by WebSocket, too.
ALTER TABLE net_grants ADD COLUMN websocket BIGINT NOT NULL DEFAULT 0;
