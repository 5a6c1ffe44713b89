"""The end of a run: nothing is in flight, and every request that came to a replica has ended in one way or another."""

import fleet

fleet.at_rest()
assert not any(map(fleet.running, fleet.REPLICAS))
counts = fleet.counts()
assert counts["received"] == counts["finished"] + counts["refused"] + counts["aborted"] > 0, counts
for router in fleet.ROUTERS:
    print(f"{router}: outstanding {fleet.outstanding(router)}")
print(f"replicas: {counts}; clients that left: {fleet.metric('prefix_router_client_aborts_total'):.0f}")
