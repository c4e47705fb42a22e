package control

import (
	"context"
	"slices"

	"github.com/outboard-dev/outboard"
)

// What a key can be limited to; see outboard.KeyScopes and docs/guide/people.md.
const (
	scopeSessions     = "sessions"
	scopeAgents       = "agents"
	scopeEnvironments = "environments"
	scopeFiles        = "files"
	scopeSandboxes    = "sandboxes"
	scopeVaults       = "vaults"
	scopePolicies     = "policies"
	scopeApprovals    = "approvals"
	scopePeople       = "people"
)

// requireReader refuses a caller that nobody authenticated, or that may not even read: every verb begins with
// it, or with one of those below.
func requireReader(by outboard.Caller) error {
	switch {
	case by.Key == "":
		return outboard.Errorf(outboard.Unauthenticated, "no API key was given")
	case by.Kind == outboard.KeyEnvironment:
		return outboard.Errorf(outboard.Denied, "an environment key is for workers of its environment and nothing else")
	case !outboard.AtLeast(by.Role, outboard.RoleViewer):
		return outboard.Errorf(outboard.Denied, "the role %s may do nothing here", quote(by.Role))
	}
	return nil
}

// require refuses callers whose role or scopes are too low for a verb that changes something.
func require(by outboard.Caller, scope, least string) error {
	if err := requireReader(by); err != nil {
		return err
	}
	if !outboard.AtLeast(by.Role, least) {
		return outboard.Errorf(outboard.Denied, "this needs the role %s, and the caller's is %s", least,
			quote(by.Role)).
			WithHint("an administrator of the organization changes roles: outboard user role")
	}
	if len(by.Scopes) > 0 && !slices.Contains(by.Scopes, scope) {
		return outboard.Errorf(outboard.Denied, "the key is limited, and does not have the scope %s", scope).
			WithHint("an administrator makes keys: outboard key create --scope %s", scope)
	}
	return nil
}

// requireDeveloper is for the verbs of who works here.
func requireDeveloper(by outboard.Caller, scope string) error {
	return require(by, scope, outboard.RoleDeveloper)
}

// requireAdmin is for the verbs of administrators.
func requireAdmin(by outboard.Caller, scope string) error {
	return require(by, scope, outboard.RoleAdmin)
}

// Unbuilt refuses callers that may not use a route which is not built either: the answer that something is
// missing is for who may use it. work says that it is one of the work queue of an environment, which its workers
// use with a key of their own.
func (c *Control) Unbuilt(ctx context.Context, by outboard.Caller, work bool, env outboard.EnvironmentID) error {
	if by.Kind == outboard.KeyEnvironment && work {
		return c.worker(ctx, by, env)
	}
	if err := requireReader(by); err != nil || !work {
		return err
	}
	_, err := c.Environment(ctx, by, env)
	return err
}

// worker refuses workers of another environment, as if there were none, and of one that was archived.
func (c *Control) worker(ctx context.Context, by outboard.Caller, env outboard.EnvironmentID) error {
	if by.Environment == "" || env != by.Environment {
		return notFound("environment", string(env))
	}
	e, err := c.store.Environment(ctx, env)
	if err := ownedBy(by, e.Org, "environment", string(env), err); err != nil {
		return err
	}
	if !e.ArchivedAt.IsZero() {
		return outboard.Errorf(outboard.Denied, "the environment was archived, and its workers have nothing to do")
	}
	return nil
}

// operator is for the verbs of who runs the server.
func operator(by outboard.Caller) error {
	if err := requireReader(by); err != nil {
		return err
	}
	if !by.Operator() {
		return outboard.Errorf(outboard.Denied, "only who runs the server may do this").
			WithHint("with the key in admin.key of its data directory")
	}
	return nil
}

// approver refuses callers who may not answer approvals or give grants.
func approver(by outboard.Caller) error { return requireDeveloper(by, scopeApprovals) }
