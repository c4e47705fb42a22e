package api

// Routes lists the routes that do something, for tests that sweep over them.
func Routes() []string {
	var out []string
	for _, r := range (&server{}).built() {
		out = append(out, r.method+" "+r.path)
	}
	return out
}

// Unbuilt lists those that answer 501.
func Unbuilt() []string { return unbuilt }
