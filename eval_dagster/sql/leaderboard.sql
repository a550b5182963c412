-- One row per eval, model and headline metric of evals.yaml: who is best at what; what differs from the results that are ranked has no rank.
select * exclude (is_configured)
from leaderboard_all
where is_configured
order by eval, rank nulls last, model
