package api

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// route is one method on one path.
type route struct {
	method, path string
	verb         verb
}

// built are the routes that do something.
func (s *server) built() []route {
	return []route{
		{"POST", "/v1/agents", s.createAgent},
		{"GET", "/v1/agents", s.listAgents},
		{"GET", "/v1/agents/{agent}", s.getAgent},
		{"POST", "/v1/agents/{agent}", s.updateAgent},
		{"POST", "/v1/agents/{agent}/archive", s.archiveAgent},
		{"GET", "/v1/agents/{agent}/versions", s.listAgentVersions},

		{"POST", "/v1/environments", s.createEnvironment},
		{"GET", "/v1/environments", s.listEnvironments},
		{"GET", "/v1/environments/{environment}", s.getEnvironment},
		{"POST", "/v1/environments/{environment}", s.updateEnvironment},
		{"DELETE", "/v1/environments/{environment}", s.deleteEnvironment},
		{"POST", "/v1/environments/{environment}/archive", s.archiveEnvironment},

		{"GET", "/v1/environments/{environment}/outboard/network", s.environmentNetwork},

		{"POST", "/v1/sessions", s.createSession},
		{"GET", "/v1/sessions", s.listSessions},
		{"GET", "/v1/sessions/{session}", s.getSession},
		{"POST", "/v1/sessions/{session}", s.updateSession},
		{"DELETE", "/v1/sessions/{session}", s.deleteSession},
		{"POST", "/v1/sessions/{session}/archive", s.archiveSession},
		{"POST", "/v1/sessions/{session}/fork", s.forkSession},
		{"POST", "/v1/sessions/{session}/rewind", s.rewindSession},
		{"GET", "/v1/sessions/{session}/outboard/workspace", s.workspace},
		{"GET", "/v1/sessions/{session}/outboard/workspace/sent", s.sentWorkspace},
		{"GET", "/v1/sessions/{session}/outboard/export", s.exportSession},
		{"POST", "/v1/outboard/import", s.importSession},
		{"GET", "/v1/sessions/{session}/outboard/checkpoints", s.listCheckpoints},
		{"GET", "/v1/sessions/{session}/outboard/checkpoints/diff", s.compareCheckpoints},
		{"GET", "/v1/sessions/{session}/outboard/network", s.sessionNetwork},
		{"GET", "/v1/sessions/{session}/outboard/network/log", s.networkLog},
		{"POST", "/v1/sessions/{session}/outboard/network/allow", s.allowNetwork},
		{"DELETE", "/v1/sessions/{session}/outboard/network/allow", s.disallowNetwork},
		{"POST", "/v1/sessions/{session}/events", s.sendEvents},
		{"GET", "/v1/sessions/{session}/events", s.listEvents},
		{"GET", "/v1/sessions/{session}/events/stream", s.stream},
		{"GET", "/v1/sessions/{session}/threads", s.listThreads},
		{"GET", "/v1/sessions/{session}/threads/{thread}", s.getThread},
		{"POST", "/v1/sessions/{session}/threads/{thread}/archive", s.archiveThread},
		{"GET", "/v1/sessions/{session}/threads/{thread}/events", s.listEvents},
		{"GET", "/v1/sessions/{session}/threads/{thread}/stream", s.stream},
		{"GET", "/v1/sessions/{session}/resources", s.listResources},
		{"POST", "/v1/sessions/{session}/resources", s.addResource},
		{"GET", "/v1/sessions/{session}/resources/{resource}", s.getResource},
		{"POST", "/v1/sessions/{session}/resources/{resource}", s.updateResource},
		{"DELETE", "/v1/sessions/{session}/resources/{resource}", s.deleteResource},

		{"POST", "/v1/boxes", s.createBox},
		{"GET", "/v1/boxes", s.listBoxes},
		{"GET", "/v1/boxes/{box}", s.getBox},
		{"DELETE", "/v1/boxes/{box}", s.deleteBox},
		{"POST", "/v1/boxes/{box}/pause", s.pauseBox},
		{"POST", "/v1/boxes/{box}/resume", s.resumeBox},
		{"POST", "/v1/boxes/{box}/timeout", s.timeoutBox},
		{"GET", "/v1/boxes/{box}/network", s.boxNetwork},
		{"PUT", "/v1/boxes/{box}/network", s.setBoxNetwork},
		{"GET", "/v1/boxes/{box}/network/log", s.boxNetworkLog},
		{"POST", "/v1/boxes/{box}/processes", s.startProcess},
		{"GET", "/v1/boxes/{box}/processes/{pid}/stream", s.attachProcess},
		{"POST", "/v1/boxes/{box}/processes/{pid}/input", s.inputProcess},
		{"POST", "/v1/boxes/{box}/processes/{pid}/resize", s.resizeProcess},
		{"POST", "/v1/boxes/{box}/processes/{pid}/signal", s.signalProcess},
		{"GET", "/v1/boxes/{box}/files", s.listBoxFiles},
		{"DELETE", "/v1/boxes/{box}/files", s.removeBoxFile},
		{"GET", "/v1/boxes/{box}/files/content", s.readBoxFile},
		{"PUT", "/v1/boxes/{box}/files/content", s.writeBoxFile},

		{"POST", "/v1/templates", s.buildTemplate},
		{"GET", "/v1/templates", s.listTemplates},
		{"GET", "/v1/templates/{template}", s.getTemplate},
		{"DELETE", "/v1/templates/{template}", s.deleteTemplate},
		{"GET", "/v1/templates/{template}/builds", s.listTemplateBuilds},
		{"GET", "/v1/templates/{template}/builds/{build}", s.getTemplateBuild},
		{"GET", "/v1/templates/{template}/builds/{build}/log", s.templateLog},

		{"GET", "/v1/outboard/images", s.listImages},
		{"DELETE", "/v1/outboard/images", s.removeImage},
		{"POST", "/v1/outboard/images/pull", s.pullImage},
		{"POST", "/v1/outboard/images/import", s.importImage},
		{"POST", "/v1/outboard/images/prune", s.pruneImages},
		{"POST", "/v1/outboard/blobs/prune", s.pruneBlobs},
		{"GET", "/v1/outboard/sandboxes", s.listSandboxes},
		{"POST", "/v1/outboard/sandboxes/{sandbox}/stop", s.stopSandbox},
		{"DELETE", "/v1/outboard/sandboxes/{sandbox}", s.killSandbox},

		{"POST", "/v1/files", s.uploadFile},
		{"GET", "/v1/files", s.listFiles},
		{"GET", "/v1/files/{file}", s.getFile},
		{"DELETE", "/v1/files/{file}", s.deleteFile},
		{"GET", "/v1/files/{file}/content", s.fileContent},

		{"POST", "/v1/vaults", s.createVault},
		{"GET", "/v1/vaults", s.listVaults},
		{"GET", "/v1/vaults/{vault}", s.getVault},
		{"POST", "/v1/vaults/{vault}", s.updateVault},
		{"DELETE", "/v1/vaults/{vault}", s.deleteVault},
		{"POST", "/v1/vaults/{vault}/archive", s.archiveVault},
		{"POST", "/v1/vaults/{vault}/credentials", s.createCredential},
		{"GET", "/v1/vaults/{vault}/credentials", s.listCredentials},
		{"GET", "/v1/vaults/{vault}/credentials/{credential}", s.getCredential},
		{"POST", "/v1/vaults/{vault}/credentials/{credential}", s.updateCredential},
		{"DELETE", "/v1/vaults/{vault}/credentials/{credential}", s.deleteCredential},
		{"POST", "/v1/vaults/{vault}/credentials/{credential}/archive", s.archiveCredential},
		{"POST", "/v1/vaults/{vault}/credentials/{credential}/mcp_oauth_validate", s.validateCredential},
		{"POST", "/v1/vaults/{vault}/credentials/{credential}/outboard/test", s.testCredential},
		{"POST", "/v1/outboard/vault_keys/rotate", s.rotateVaultKeys},

		{"GET", "/v1/outboard/audit", s.listAudit},
		{"POST", "/v1/outboard/audit/checkpoint", s.checkpointAudit},
		{"POST", "/v1/outboard/audit/redact", s.redactAudit},
		{"GET", "/v1/policies", s.listPolicies},
		{"POST", "/v1/policies", s.savePolicy},
		{"POST", "/v1/policies/test", s.testPolicy},
		{"GET", "/v1/policies/{policy}", s.getPolicy},
		{"GET", "/v1/policies/{policy}/versions", s.listPolicyVersions},
		{"GET", "/v1/sessions/{session}/outboard/why/{event}", s.why},
		{"GET", "/v1/approvals", s.listApprovals},
		{"GET", "/v1/approvals/{approval}", s.getApproval},
		{"POST", "/v1/approvals/{approval}", s.answerApproval},
		{"GET", "/v1/grants", s.listGrants},
		{"POST", "/v1/grants", s.addGrant},
		{"GET", "/v1/grants/{grant}", s.getGrant},
		{"DELETE", "/v1/grants/{grant}", s.revokeGrant},

		{"GET", "/v1/budgets", s.listBudgets},
		{"POST", "/v1/budgets", s.setBudget},
		{"DELETE", "/v1/budgets/{budget}", s.removeBudget},
		{"GET", "/v1/outboard/whoami", s.whoami},
		{"GET", "/v1/outboard/organizations", s.listOrgs},
		{"POST", "/v1/outboard/organizations", s.createOrg},
		{"DELETE", "/v1/outboard/organizations/{organization}", s.archiveOrg},
		{"GET", "/v1/outboard/users", s.listUsers},
		{"POST", "/v1/outboard/users", s.addUser},
		{"GET", "/v1/outboard/users/{user}", s.getUser},
		{"POST", "/v1/outboard/users/{user}", s.updateUser},
		{"DELETE", "/v1/outboard/users/{user}", s.removeUser},
		{"POST", "/v1/outboard/users/{user}/restore", s.restoreUser},
		{"GET", "/v1/outboard/keys", s.listKeys},
		{"POST", "/v1/outboard/keys", s.createKey},
		{"GET", "/v1/outboard/keys/{key}", s.getKey},
		{"DELETE", "/v1/outboard/keys/{key}", s.revokeKey},

		{"GET", "/v1/ssh_keys", s.listSSHKeys},
		{"POST", "/v1/ssh_keys", s.addSSHKey},
		{"GET", "/v1/ssh_keys/{ssh_key}", s.getSSHKey},
		{"DELETE", "/v1/ssh_keys/{ssh_key}", s.revokeSSHKey},
		{"GET", "/v1/outboard/ssh", s.sshDoor},

		{"GET", "/v1/kills", s.listKills},
		{"POST", "/v1/kills", s.kill},
		{"DELETE", "/v1/kills/{kill}", s.liftKill},

		{"GET", "/v1/models", s.listModels},
		{"GET", "/v1/models/{model...}", s.getModel},
	}
}

// unbuilt are the routes of the wire that answer 501.
var unbuilt = []string{
	"GET /v1/memory_stores", "POST /v1/memory_stores", "GET /v1/memory_stores/{store}", "POST /v1/memory_stores/{store}",
	"DELETE /v1/memory_stores/{store}", "POST /v1/memory_stores/{store}/archive", "GET /v1/memory_stores/{store}/memories",
	"POST /v1/memory_stores/{store}/memories", "GET /v1/memory_stores/{store}/memories/{memory}",
	"POST /v1/memory_stores/{store}/memories/{memory}", "DELETE /v1/memory_stores/{store}/memories/{memory}",
	"GET /v1/memory_stores/{store}/memory_versions", "GET /v1/memory_stores/{store}/memory_versions/{version}",
	"POST /v1/memory_stores/{store}/memory_versions/{version}/redact",

	"GET /v1/deployments", "POST /v1/deployments", "GET /v1/deployments/{deployment}", "POST /v1/deployments/{deployment}",
	"POST /v1/deployments/{deployment}/archive", "POST /v1/deployments/{deployment}/pause",
	"POST /v1/deployments/{deployment}/unpause", "POST /v1/deployments/{deployment}/run",
	"GET /v1/deployment_runs", "GET /v1/deployment_runs/{run}",

	"GET /v1/skills", "POST /v1/skills", "GET /v1/skills/{skill}", "DELETE /v1/skills/{skill}",
	"GET /v1/skills/{skill}/versions", "POST /v1/skills/{skill}/versions", "GET /v1/skills/{skill}/versions/{version}",
	"DELETE /v1/skills/{skill}/versions/{version}", "GET /v1/skills/{skill}/versions/{version}/content",

	"GET /v1/dreams", "POST /v1/dreams", "GET /v1/dreams/{dream}", "POST /v1/dreams/{dream}/cancel", "POST /v1/dreams/{dream}/archive",
	"GET /v1/tunnels", "POST /v1/tunnels", "GET /v1/tunnels/{rest...}", "POST /v1/tunnels/{rest...}", "DELETE /v1/tunnels/{rest...}",
	"GET /v1/user_profiles", "POST /v1/user_profiles", "GET /v1/user_profiles/{rest...}", "POST /v1/user_profiles/{rest...}",
	"DELETE /v1/user_profiles/{rest...}",
	"GET /v1/organizations/{rest...}", "POST /v1/organizations/{rest...}", "DELETE /v1/organizations/{rest...}",

	"GET /v1/compliance/{rest...}", "POST /v1/compliance/{rest...}", "DELETE /v1/compliance/{rest...}",

	"POST /v1/complete", "POST /v1/messages", "POST /v1/messages/count_tokens", "GET /v1/messages/batches", "POST /v1/messages/batches",
	"GET /v1/messages/batches/{rest...}", "POST /v1/messages/batches/{rest...}", "DELETE /v1/messages/batches/{rest...}",
}

// unbuiltWork are those of the work queue, which answer 400. Who may not use them is told so, and not that they are
// missing.
var unbuiltWork = []string{
	"GET /v1/environments/{environment}/work", "GET /v1/environments/{environment}/work/poll",
	"GET /v1/environments/{environment}/work/stats", "GET /v1/environments/{environment}/work/{work}",
	"POST /v1/environments/{environment}/work/{work}", "POST /v1/environments/{environment}/work/{work}/ack",
	"POST /v1/environments/{environment}/work/{work}/heartbeat", "POST /v1/environments/{environment}/work/{work}/stop",
}

// formerly are paths that had another name. The old ones answer for one release more, and say that they end.
var formerly = []struct{ old, now string }{
	{"/v1/sandboxes", "/v1/boxes"},
	{"/v1/outboard/machines", "/v1/outboard/sandboxes"},
}

// deprecated answers as h does, and says since when the path is not to be used (RFC 9745).
func deprecated(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Deprecation", "@1795910400") // 2026-11-29
		h.ServeHTTP(w, r)
	})
}

// routes is the whole surface. A known path under another method answers 405, an unknown path 404, both as JSON.
func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	add := func(method, path string, h http.Handler) {
		mux.Handle(method+" "+path, h)
		methods[path] = append(methods[path], method)
	}
	for _, r := range s.built() {
		h := s.handle(r.method+" "+r.path, r.verb, queries[r.method+" "+r.path])
		if removes(r.method, r.path) {
			h = removal(h)
		}
		add(r.method, r.path, h)
		for _, f := range formerly {
			if rest, ok := strings.CutPrefix(r.path, f.now); ok {
				add(r.method, f.old+rest, deprecated(h))
			}
		}
	}
	for _, r := range s.open() {
		add(r.method, r.path, s.handleOpen(r.verb))
	}
	for _, pattern := range slices.Concat(unbuilt, unbuiltWork) {
		method, path, _ := strings.Cut(pattern, " ")
		work := slices.Contains(unbuiltWork, pattern)
		add(method, path, s.handle(pattern, func(r *request) (any, error) {
			if err := s.ctl.Unbuilt(r.Context(), r.by, work,
				outboard.EnvironmentID(r.PathValue("environment"))); err != nil {
				return nil, err
			}
			kind := outboard.Unimplemented
			// official workers take a 5xx for passing trouble and poll for ever: a 4xx ends them with the
			// message
			if work {
				kind = outboard.Invalid
			}
			return nil, outboard.Errorf(kind, "%s %s is part of the wire and not built yet", method, path)
		}, []string{anyParam}))
	}
	add("GET", "/healthz", http.HandlerFunc(s.health))
	for path, allowed := range methods {
		slices.Sort(allowed)
		for _, m := range otherMethods(path, allowed) {
			mux.HandleFunc(m+" "+path, s.wrongMethod(strings.Join(allowed, ", ")))
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, outboard.Errorf(outboard.NotFound, "there is nothing at %s", clip(r.URL.Path)))
	})
	return s.spelled(mux)
}

// spelled asks for a key before the mux redirects a path that it would spell otherwise: who has none learns of no
// route.
func (s *server) spelled(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if clean := path.Clean("/" + r.URL.Path); clean != r.URL.Path && clean+"/" != r.URL.Path {
			if _, err := s.caller(r); err != nil {
				s.fail(w, r, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// removes reports whether a route takes something away: what must work on a full disk as well.
func removes(method, path string) bool {
	return method == "DELETE" || method == "POST" && (strings.HasSuffix(path, "/prune") || path == "/v1/kills")
}

func removal(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { h(w, r.WithContext(control.Removing(r.Context()))) }
}

// otherMethods are the methods a path does not have. HEAD comes with GET, but for streams, where it would open one.
func otherMethods(path string, allowed []string) []string {
	var out []string
	for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"} {
		head := m == "HEAD" && slices.Contains(allowed, "GET") && !strings.HasSuffix(path, "/stream")
		if !head && !slices.Contains(allowed, m) {
			out = append(out, m)
		}
	}
	return out
}

func (s *server) wrongMethod(allowed string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		body, _ := errorFor(bad("%s is not allowed here, only %s", clip(r.Method), allowed), requestID(r.Context()))
		writeJSON(w, http.StatusMethodNotAllowed, body)
	}
}

// health answers whether the server can work. It needs no key and tells nothing else.
func (s *server) health(w http.ResponseWriter, r *http.Request) {
	if err := s.ctl.Ready(r.Context()); err != nil {
		s.fail(w, r, outboard.Errorf(outboard.Unavailable, "the store does not answer: %w", err))
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}
