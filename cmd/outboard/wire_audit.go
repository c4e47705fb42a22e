package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/outboard-dev/outboard/internal/audit"
)

// auditDir is where a data directory keeps what the database cannot reach of the audit.
func auditDir(data string) string { return filepath.Join(data, "audit") }

// openAudit begins to witness the audit log. One that was changed since it was last seen is served, for people to look at, and nothing
// that has to be recorded is done.
func (s *server) openAudit(ctx context.Context) (err error) {
	if s.witness, err = audit.OpenWitness(auditDir(s.cfg.Data), s.log, nil); err != nil {
		return dataError(s.cfg.Data, err)
	}
	seal := func(err error) {
		s.log.Error("the audit log is not the one that was written; nothing that has to be recorded is done", "err", err)
		s.store.SealAudit(err)
	}
	_, err = s.witness.Update(ctx, s.store)
	if _, bad := errors.AsType[*audit.Tampered](err); bad {
		seal(err)
		return nil
	}
	if err != nil {
		return err
	}
	s.witness.Start(s.store, seal)
	return nil
}
