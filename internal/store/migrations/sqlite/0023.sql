-- Every server looks twice a minute for the builds that are open on its host, those that wait to begin included.
DROP INDEX template_builds_open;
CREATE INDEX template_builds_open ON template_builds (host) WHERE state IN ('building', 'waiting');
